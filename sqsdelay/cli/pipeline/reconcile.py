"""``sqsdelay pipeline reconcile``: what became of a job's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.options import Master
from sqsdelay.cli.pipeline.spark_job import (
    GRACE_SECONDS,
    AsOf,
    EndpointOption,
    FileFormat,
    Grace,
    Job,
    Key,
    LedgerFormat,
    TimeZone,
    as_of_ms,
    with_table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def reconcile(
    table: Annotated[
        str, typer.Argument(metavar="INPUT", help="The job's table, as `schedule` was given it.")
    ],
    ledger: Annotated[
        str, typer.Argument(help="The ledger, as `report` reads it: lines, or a table's name.")
    ],
    job: Job = None,
    endpoint: EndpointOption = None,
    key: Key = None,
    receipts: Annotated[
        str | None, typer.Option(help="The folder of receipts that `schedule` was given.")
    ] = None,
    file_format: FileFormat = None,
    ledger_format: LedgerFormat = None,
    as_of: AsOf = None,
    grace: Grace = GRACE_SECONDS,
    time_zone: TimeZone = "UTC",
    folder: Annotated[
        str | None,
        typer.Option("--out", help="New folder or URI for a Parquet table of all messages."),
    ] = None,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Compare what a job planned with what was sent and delivered.

    It shows planned, sent, released, delivered and lost messages.

    Compares the job's table with its receipts and the ledger. Lost messages do not change the exit code.
    """
    given = {"job": job, "endpoint": endpoint, "key": key, "receipts": receipts}
    options = {name: value for name, value in given.items() if value is not None}

    def run(rows: DataFrame) -> list[dict[str, Any]]:
        from sqsdelay.spark.locations import hadoop_uri
        from sqsdelay.spark.reconciliation import reconcile, totals

        found = reconcile(
            rows,
            ledger,
            ledger_format=ledger_format,
            as_of_ms=as_of_ms(as_of),
            grace_seconds=grace,
            **options,
        )
        if folder is None:
            return totals(found)
        place = hadoop_uri(rows.sparkSession, folder, "--out")
        found.write.mode("errorifexists").parquet(place)
        return totals(rows.sparkSession.read.parquet(place))

    with err.status("reading the table, the receipts and the ledger with Spark"):
        counted = with_table(
            "reconcile", table, file_format, run, time_zone=time_zone, master=master
        )
    if as_json:
        print_json({"endpoints": counted})
    else:
        _print(counted)


_COLUMNS: Final = (
    "planned", "sent", "parked", "released", "at_destination", "delivered", "handed_over", "lost",
    "pending", "unknown", "not_sent", "rejected", "cancelled", "repeated", "unplanned", "replayed",
)  # fmt: skip


def _print(counted: Sequence[dict[str, Any]]) -> None:
    printed = Table("", *(str(row["endpoint"]) for row in counted), box=None)
    for column in printed.columns[1:]:
        column.justify = "right"
    for name in _COLUMNS:
        printed.add_row(name.replace("_", " "), *(f"{row[name]:,}" for row in counted))
    out.print(printed)
