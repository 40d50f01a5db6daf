"""The command line: parse, wire, print. Of any error of a command `main` makes a line and a code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Final

import typer
from typer import Option

from sqsdelay.cli import rabbitmq
from sqsdelay.cli.console import EXIT_REFUSED, err, exit_code, in_options, out
from sqsdelay.cli.cost import cost, cost_of_table
from sqsdelay.cli.operate import endpoint_app, status, store_app
from sqsdelay.cli.options import Commands, environment, logging_to_stderr
from sqsdelay.cli.pipeline import events, reconcile, report, schedule
from sqsdelay.cli.prove import prove
from sqsdelay.cli.receive import receive
from sqsdelay.cli.run import consume, dispatch, timeout_manager
from sqsdelay.cli.send import send
from sqsdelay.cli.serve import demo, local, serve_console
from sqsdelay.cli.spark_job import pipeline
from sqsdelay.cli.waiting import cancel, errors_app, pending, reschedule
from sqsdelay.errors import SqsDelayError

app = typer.Typer(
    name="sqsdelay", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sqsdelay {version('sqsdelay')}")  # noqa: T201
        raise typer.Exit


@app.callback()
def before_the_command(
    context: typer.Context,
    profile: Annotated[str | None, Option(help="The AWS profile, as with the AWS CLI.")] = None,
    region: Annotated[str | None, Option(help="The AWS region, as with the AWS CLI.")] = None,
    verbose: Annotated[bool, Option("--verbose", help="Log requests and errors' causes.")] = False,
    _: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Unrestricted delays for Amazon SQS.

    The options stand before the command: sqsdelay --region eu-west-1 status orders.
    """
    context.with_resource(environment(profile, region))
    context.with_resource(logging_to_stderr(verbose))


GROUPS: Final[dict[str, tuple[Callable[..., object], ...]]] = {
    "Send and receive": (demo, local, send, receive, cancel, reschedule),
    "Look": (status, pending, serve_console),
    "Run": (consume, dispatch, timeout_manager),
    "Operate": (prove,),
    "Plan and account": (cost,),
}
"""Of the help, in the order of use."""

for panel, commands in GROUPS.items():
    for command in commands:
        name = "console" if command is serve_console else None
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(endpoint_app, name="endpoint", rich_help_panel="Operate")
app.add_typer(errors_app, name="errors", rich_help_panel="Operate")
app.add_typer(store_app, name="store", rich_help_panel="Operate")
app.add_typer(rabbitmq.app, name="rabbitmq", rich_help_panel="Operate")
pipeline_app = typer.Typer(cls=Commands, no_args_is_help=True, callback=pipeline)
for command in (schedule, reconcile, report, events):
    pipeline_app.command()(command)
pipeline_app.command("cost")(cost_of_table)
app.add_typer(pipeline_app, name="pipeline", rich_help_panel="Plan and account")


def main() -> None:
    """Run the command line; an expected error is one line on stderr and an exit code."""
    # Help and errors in boxes are cut to the width of a terminal, where there is one.
    app.rich_markup_mode = "rich" if out.is_terminal and err.is_terminal else None
    try:
        app()
    except SqsDelayError as error:
        print(f"sqsdelay: {in_options(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(exit_code(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        # What stdout still holds cannot be written, either: Python would try once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"sqsdelay: the output cannot be written: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_REFUSED)
