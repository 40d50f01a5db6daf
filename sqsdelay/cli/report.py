"""``sqsdelay pipeline report`` and ``events``: what became of a ledger's messages; its lines as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from typer import Argument, Option

from sqsdelay.cli.console import err, out, print_json, say, show
from sqsdelay.cli.cost import read_prices
from sqsdelay.cli.options import PricesFile, instant_ms
from sqsdelay.cli.spark_job import GRACE_SECONDS, AsOf, Grace, on_spark
from sqsdelay.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqsdelay.spark.report.page import Figures


def report(
    context: typer.Context,
    ledger: Annotated[
        str,
        Argument(help="JSON lines, plain or .gz: file, folder, glob or URI; or a table's name."),
    ],
    folder: Annotated[
        str, Option("--out", help="Folder or URI for the report; replaces an earlier one.")
    ],
    as_of: AsOf = None,
    grace: Grace = GRACE_SECONDS,
    ledger_format: Annotated[
        str | None,
        Option("--format", help="The ledger holds rows, not lines: parquet, delta, iceberg, …"),
    ] = None,
    prices: PricesFile = None,
    store: Annotated[
        str, Option(help="Whose price parking has: dynamodb, s3, scheduler, postgresql or sqlite.")
    ] = "dynamodb",
    as_json: Annotated[bool, Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Report what happened to the messages in a ledger.

    It counts delivered, lost, duplicated and early ones, and shows how late they were.

    Writes Parquet tables and a page, report.html. Lost or duplicated messages do not change the exit
    code.
    """
    try:
        from sqsdelay.spark.report.write import write_report
        from sqsdelay.spark.session import check_java
    except ImportError as error:
        raise MissingExtra(
            f"the report requires further packages ({error}): pip install 'sqsdelay[spark,report]'"
        ) from error
    check_java()
    used, at_ms = read_prices(prices), instant_ms("--as-of", as_of)

    def run(spark: SparkSession) -> Figures:
        return write_report(
            spark,
            ledger,
            folder,
            ledger_format=ledger_format,
            prices=used,
            store=store,
            as_of_ms=at_ms,
            grace_seconds=grace,
        )

    with err.status("reading the ledger with Spark"):
        figures = on_spark("report", run, master=context.obj)
    if as_json:
        print_json(asdict(figures))
    else:
        _print(figures)
        say(f"{folder.rstrip('/')}/report.html")


def _print(figures: Figures) -> None:
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in (
        "messages", "lost", "pending", "unknown", "delivered", "handed_over", "rejected", "cancelled",
        "duplicated", "early", "lines", "bad_lines",
    ):  # fmt: skip
        table.add_row(name.replace("_", " "), f"{getattr(figures, name):,}")
    for name, share in (("1 s", figures.within_1s), ("60 s", figures.within_60s)):
        if share is not None:
            table.add_row(f"arrived within {name}", f"{100 * share:.2f} %")
    for name, ms in (("median lateness", figures.p50_ms), ("latest", figures.max_ms)):
        if ms is not None:
            table.add_row(name, f"{ms / 1000:,.3f} s")
    out.print(table)
    for row in figures.last_seen:
        seen = f"last seen in the {row['last_seen']}" if row["last_seen"] else "never seen"
        say(f"{row['messages']:,} {row['status']} of {row['endpoint']}: {seen}")


def events(
    context: typer.Context,
    ledger: Annotated[
        str, Argument(help="JSON lines, plain or .gz: a file, folder (recursively), glob or URI.")
    ],
    folder: Annotated[str, Option("--out", help="Folder or URI of the table that they go to.")],
    as_json: Annotated[bool, Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Append a ledger's events to a Parquet table, by day.

    Read it with `pipeline report FOLDER --format parquet`, or any engine. Lines that are not events are
    counted and left out; a report counts an event once, even if it was appended twice.
    """

    def run(spark: SparkSession) -> tuple[int, int]:
        from sqsdelay.spark.report.read import write_events

        return write_events(spark, ledger, folder)

    with err.status("reading the ledger with Spark"):
        appended, bad_lines = on_spark("events", run, master=context.obj)
    line = f"{appended:,} events appended, {bad_lines:,} bad lines left out"
    show({"events": appended, "bad_lines": bad_lines}, line, as_json=as_json)
