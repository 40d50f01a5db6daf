"""The CDK's command line, as pinned in package-lock.json, pointed at a local AWS."""

from __future__ import annotations

import json
import os
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Final

from sqsdelay.errors import SqsDelayError
from sqsdelay.testing.local_aws import REGION, LocalAws

ROOT: Final = Path(__file__).parents[1]
CDK: Final = ROOT / "node_modules" / ".bin" / "cdk"
LOCAL_ACCOUNT: Final = "000000000000"
"""The one account of a local AWS."""


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
        """Run one command to its end in a checkout; returns what it printed.

        Raises:
            CdkFailed: it ended with an error, or is not installed.
        """
        if not CDK.exists():
            raise CdkFailed(f"{CDK.relative_to(ROOT)} is missing; run: npm ci")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CDK_"))}
        output = () if "--output" in arguments else ("--output", str(self._folder / "cdk.out"))
        # CloudFormation's own validation of the templates takes longer than all the rest of a
        # synthesis. tests/infra/test_app.py has it; the nag packs run here, too.
        quick = {"CDK_HOME": str(self._folder / "home"), "CDK_VALIDATION": "false"}
        done = subprocess.run(
            [str(CDK), *arguments, *output],
            cwd=checkout,
            env=inherited | self._aws.environment() | quick,
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

    def bootstrap(self) -> None:
        """Prepare the account; from a folder without an app, which would be synthesised in vain."""
        self.run("bootstrap", f"aws://{LOCAL_ACCOUNT}/{REGION}", checkout=self._folder)

    def deploy(self, *context: str, checkout: Path = ROOT) -> dict[str, str]:
        """Deploy every stack of the app under a context; returns the outputs of the last."""
        outputs = self._folder / "outputs.json"
        outputs.unlink(missing_ok=True)
        self.run(
            "deploy",
            "--all",
            "--require-approval=never",
            f"--outputs-file={outputs}",
            *self.app(*context, checkout=checkout),
            checkout=checkout,
        )
        stacks: dict[str, dict[str, str]] = json.loads(outputs.read_text())
        return list(stacks.values())[-1]

    def destroy(self, *context: str) -> None:
        """Remove every stack of the app under a context."""
        self.run("destroy", "--all", "--force", *self.app(*context))

    def app(self, *context: str, checkout: Path = ROOT) -> tuple[str, ...]:
        """What to give a command for the app under a context: synthesised once, which is half of a
        command's time."""
        assembly = self.assembly(*context, checkout=checkout)
        if (assembly / "manifest.json").exists():
            return "--app", str(assembly)
        return *context, "--output", str(assembly)

    def assembly(self, *context: str, checkout: Path = ROOT) -> Path:
        """The folder of what is synthesised under a context."""
        name = sha256(repr((str(checkout), context)).encode()).hexdigest()[:16]
        return self._folder / f"cdk.out-{name}"
