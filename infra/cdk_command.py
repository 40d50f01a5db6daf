"""The CDK's command line, as pinned in package-lock.json, pointed at a local AWS."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from sqsdelay.errors import SqsDelayError
from sqsdelay.testing.local_aws import LocalAws

ROOT: Final = Path(__file__).parents[1]
CDK: Final = ROOT / "node_modules" / ".bin" / "cdk"


class CdkFailed(SqsDelayError):
    """The command line ended with an error; the message carries what it printed."""


class CdkCommand:
    """Runs ``cdk`` in a checkout against one local AWS, keeping all it writes in a folder of its own.

    Args:
        aws: a started local AWS.
        folder: for the CDK's home, its output and its caches.
    """

    def __init__(self, aws: LocalAws, folder: Path) -> None:
        self._aws = aws
        self._folder = folder

    def run(self, *arguments: str, checkout: Path = ROOT) -> str:
        """Run one command to its end; returns what it printed.

        Raises:
            CdkFailed: it ended with an error, or is not installed.
        """
        if not CDK.exists():
            raise CdkFailed(f"{CDK.relative_to(ROOT)} is missing; run: npm ci")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CDK_"))}
        done = subprocess.run(
            [str(CDK), *arguments, "--output", str(self._folder / "cdk.out")],
            cwd=checkout,
            env=inherited | self._aws.environment() | {"CDK_HOME": str(self._folder / "home")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CdkFailed(
                f"cdk {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
            )
        return done.stdout

    def deploy(self, *arguments: str, checkout: Path = ROOT) -> dict[str, str]:
        """Deploy every stack the arguments ask for; returns the outputs of the last."""
        outputs = self._folder / "outputs.json"
        outputs.unlink(missing_ok=True)
        self.run(
            "deploy",
            "--all",
            "--require-approval=never",
            f"--outputs-file={outputs}",
            *arguments,
            checkout=checkout,
        )
        stacks: dict[str, dict[str, str]] = json.loads(outputs.read_text())
        return list(stacks.values())[-1]

    def destroy(self, *arguments: str) -> None:
        """Remove every stack the arguments ask for."""
        self.run("destroy", "--all", "--force", *arguments)
