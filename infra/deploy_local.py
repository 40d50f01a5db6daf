"""``make deploy-local``: the deployed endpoint on a local AWS, for a person to play with."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from infra.cdk_command import CdkCommand
from sqsdelay.errors import SqsDelayError
from sqsdelay.testing.local_aws import LocalAws

ENDPOINT: Final = "orders"
HOP_SECONDS: Final = 5
"""Short, so that a person sees several hops."""


def main() -> None:
    """Start a local AWS, deploy to it as to a real one, and leave it running until interrupted."""
    try:
        with LocalAws() as aws, tempfile.TemporaryDirectory(prefix="sqsdelay-cdk-") as folder:
            cdk = CdkCommand(aws, Path(folder))
            _say(f"local AWS on {aws.endpoint_url}; cdk bootstrap …")
            cdk.bootstrap()
            _say(f"cdk deploy -c endpoint={ENDPOINT} -c hopSeconds={HOP_SECONDS} …")
            outputs = cdk.deploy("-c", f"endpoint={ENDPOINT}", "-c", f"hopSeconds={HOP_SECONDS}")
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
