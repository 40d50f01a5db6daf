"""``sqsdelay pipeline events``: a ledger's lines as a Parquet table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.options import Master
from sqsdelay.cli.pipeline.spark_job import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def events(
    ledger: Annotated[
        str,
        typer.Argument(help="JSON lines, plain or .gz: a file, folder (recursively), glob or URI."),
    ],
    folder: Annotated[
        str, typer.Option("--out", help="Folder or URI of the table; events are appended to it.")
    ],
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Append a ledger's events to a Parquet table, by day.

    Read it with `pipeline report FOLDER --format parquet`, or any engine. Lines that are not events are
    counted and left out; a report counts an event once, even if it was appended twice.
    """

    def run(spark: SparkSession) -> tuple[int, int]:
        from sqsdelay.spark.report.read import write_events

        return write_events(spark, ledger, folder)

    with err.status("reading the ledger with Spark"):
        appended, bad_lines = on_spark("events", run, master=master)
    if as_json:
        print_json({"events": appended, "bad_lines": bad_lines})
    else:
        out.print(
            f"{appended:,} events appended, {bad_lines:,} bad lines left out", highlight=False
        )
