"""``sqsdelay pipeline``: jobs over millions of messages. Spark is imported when one of them runs."""

from __future__ import annotations

import typer

from sqsdelay.cli.pipeline.cost import cost
from sqsdelay.cli.pipeline.reconcile import reconcile
from sqsdelay.cli.pipeline.report import events, report
from sqsdelay.cli.pipeline.schedule import schedule

app = typer.Typer(help="Spark jobs over millions of messages.", no_args_is_help=True)
app.command()(schedule)
app.command()(reconcile)
app.command()(report)
app.command()(events)
app.command()(cost)
