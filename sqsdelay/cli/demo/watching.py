"""``sqsdelay demo --console``: the demo's messages in the console, while they hop and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqsdelay.cli.console import tell
from sqsdelay.errors import ConfigurationError
from sqsdelay.testing.local_aws import LocalAws

END_SECONDS: Final = 5.0


@contextmanager
def console_of(aws: LocalAws, endpoint: str, ledger: Path, *, hop: int) -> Iterator[None]:
    """A console of an endpoint on a local AWS, in its own process; its address is told.

    Raises:
        ConfigurationError: it did not start; what it said is on stderr.
    """
    program = [sys.executable, "-c", "from sqsdelay.cli import main; main()"]
    options = ["--endpoint", endpoint, "--ledger", str(ledger), "--hop", str(hop), "--port", "0"]
    others = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SQSDELAY_"))}
    with subprocess.Popen(
        [*program, "console", *options, "--json"],
        env=others | aws.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            if not told:
                raise ConfigurationError("the console did not start; see above for the reason")
            tell(f"watch it at {json.loads(told)['url']}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
