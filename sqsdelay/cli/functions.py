"""``sqsdelay functions``: the functions' archives, for CloudFormation and Terraform."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsdelay.cli.console import print_json, say
from sqsdelay.cli.options import Json
from sqsdelay.errors import ConfigurationError


def functions(
    folder: Annotated[Path, typer.Argument(help="Where to write them; created if missing.")],
    as_json: Json = False,
) -> None:
    """Write the functions' code, to deploy it without the CDK.

    The files are delay_consumer.zip and dispatcher.zip.
    """
    from sqsdelay.lambdas.function_code import write_archives

    try:
        written = write_archives(folder)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: {error.strerror}; name a folder that can be written"
        ) from error
    if as_json:
        print_json([str(path) for path in written])
        return
    for path in written:
        say(f"{path.stat().st_size:>9,} bytes  {path}")
