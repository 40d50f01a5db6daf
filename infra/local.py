"""A local AWS to deploy to: the CDK's command line, as pinned in package-lock.json, pointed at it; and
``make deploy-local``, the deployed endpoint for a person to play with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from sqsdelay.errors import SqsDelayError
from sqsdelay.testing.local_aws import REGION, LocalAws

ROOT: Final = Path(__file__).parents[1]
CDK: Final = ROOT / "node_modules" / ".bin" / "cdk"
LOCAL_ACCOUNT: Final = "000000000000"
"""The one account of a local AWS."""

ENDPOINT: Final = "orders"
HOP_SECONDS: Final = 5
"""Short, so that a person sees several hops."""


class CdkFailed(SqsDelayError):
    """The command line ended with an error; the message carries what it printed."""


class CdkCommand:
    """Runs ``cdk`` in a checkout against one local AWS, keeping all it writes in a folder of its own.
    ``aws``: a started local AWS. ``folder``: for the CDK's home, its output and its caches."""

    def __init__(self, aws: LocalAws, folder: Path) -> None:
        self._aws = aws
        self._folder = folder

    def run(self, *arguments: str, checkout: Path = ROOT) -> str:
        """Run one command to its end in a checkout; returns what it printed. Raises CdkFailed: it ended
        with an error, or is not installed."""
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

    def deploy(self, *arguments: str, checkout: Path = ROOT) -> dict[str, dict[str, str]]:
        """Deploy the stacks named, or ``--all``; returns the outputs of each."""
        outputs = self._folder / "outputs.json"
        outputs.unlink(missing_ok=True)
        given = ("--require-approval=never", f"--outputs-file={outputs}")
        self.run("deploy", *given, *arguments, checkout=checkout)
        stacks: dict[str, dict[str, str]] = json.loads(outputs.read_text())
        return stacks


def main() -> None:
    """Start a local AWS, deploy to it as to a real one, and leave it running until interrupted."""
    try:
        with LocalAws() as aws, tempfile.TemporaryDirectory(prefix="sqsdelay-cdk-") as folder:
            cdk = CdkCommand(aws, Path(folder))
            _say(f"local AWS on {aws.endpoint_url}; cdk bootstrap …")
            cdk.bootstrap()
            _say(f"cdk deploy -c endpoint={ENDPOINT} -c hopSeconds={HOP_SECONDS} …")
            context = ("--all", "-c", f"endpoint={ENDPOINT}", "-c", f"hopSeconds={HOP_SECONDS}")
            [outputs] = cdk.deploy(*context).values()
            for name, value in sorted(outputs.items()):
                _say(f"  {name} = {value}")
            _say(_commands(aws))
            ends = {signal.SIGINT, signal.SIGTERM}
            signal.pthread_sigmask(signal.SIG_BLOCK, ends)
            signal.sigwait(ends)
    except SqsDelayError as error:
        sys.exit(f"sqsdelay: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _commands(aws: LocalAws) -> str:
    exports = "\n".join(f"  export {name}={value}" for name, value in aws.environment().items())
    return f"""
In another terminal, in this folder:

{exports}

  .venv/bin/sqsdelay send {ENDPOINT} --body hello --delay 20 --hop {HOP_SECONDS}
  .venv/bin/sqsdelay receive {ENDPOINT}
  .venv/bin/sqsdelay endpoint check {ENDPOINT} --hop {HOP_SECONDS}
  npx cdk deploy -c endpoint={ENDPOINT} -c hopSeconds=2    # deploy a change
  npx cdk destroy -c endpoint={ENDPOINT}                   # keeps the queues

Ctrl-C ends the local AWS; everything in it is gone then."""


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
