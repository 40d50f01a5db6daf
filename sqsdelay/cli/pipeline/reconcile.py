"""``sqsdelay pipeline reconcile`` and ``replay``: what a job has lost, told and sent again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.options import Hop, Master, OptionalStoreUrl
from sqsdelay.cli.pipeline.report import GRACE_SECONDS
from sqsdelay.cli.pipeline.schedule import print_summary
from sqsdelay.cli.pipeline.spark_job import with_table
from sqsdelay.core.delay import due_at_ms, parse_due_at
from sqsdelay.limits import DEFAULT_HOP_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Input = Annotated[
    str, typer.Argument(metavar="INPUT", help="The job's table, as `schedule` was given it.")
]
Ledger = Annotated[
    str, typer.Argument(help="The ledger, as `report` reads it: lines, or a table's name.")
]
Job = Annotated[str | None, typer.Option(help="The job's name.")]
Key = Annotated[str | None, typer.Option(help="The key column, as for `schedule`.")]
EndpointOption = Annotated[
    str | None, typer.Option(help="Destination queue, for rows without an endpoint column.")
]
FileFormat = Annotated[
    str | None, typer.Option("--format", help="parquet, csv or jsonl; default: by file name.")
]
LedgerFormat = Annotated[
    str | None, typer.Option(help="The ledger holds rows, not lines: parquet, delta, iceberg, …")
]
AsOf = Annotated[
    str | None,
    typer.Option(help="Ignore events after this time; default: the newest event is the end."),
]
Grace = Annotated[
    int, typer.Option(help="Seconds after its due time until a message counts as lost.")
]
TimeZone = Annotated[str, typer.Option(help="Time zone of due times without an offset.")]

_READING: Final = "reading the table, the receipts and the ledger with Spark"
_INCLUDE_HELP: Final = (
    "Statuses to send again: lost (the default), pending, unknown, not-sent. May be repeated."
)


def reconcile(
    table: Input,
    ledger: Ledger,
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
    options = _options(job=job, endpoint=endpoint, key=key, receipts=receipts)

    def run(rows: DataFrame) -> list[dict[str, Any]]:
        from sqsdelay.spark.locations import hadoop_uri
        from sqsdelay.spark.reconciliation import reconcile, totals

        found = reconcile(
            rows,
            ledger,
            ledger_format=ledger_format,
            as_of_ms=_as_of_ms(as_of),
            grace_seconds=grace,
            **options,
        )
        if folder is None:
            return totals(found)
        place = hadoop_uri(rows.sparkSession, folder, "--out")
        found.write.mode("errorifexists").parquet(place)
        return totals(rows.sparkSession.read.parquet(place))

    with err.status(_READING):
        counted = with_table(
            "reconcile", table, file_format, run, time_zone=time_zone, master=master
        )
    if as_json:
        print_json({"endpoints": counted})
    else:
        _print(counted)


def replay(
    table: Input,
    ledger: Ledger,
    receipts: Annotated[
        str,
        typer.Option(
            help="The folder of receipts that `schedule` was given; replays are recorded there."
        ),
    ],
    job: Annotated[str, typer.Option(help="The job's name.")],
    include: Annotated[list[str] | None, typer.Option(help=_INCLUDE_HELP)] = None,
    endpoint: EndpointOption = None,
    key: Key = None,
    rejects: Annotated[
        str | None, typer.Option(help="Folder for rows that could not be sent, with the reason.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(help="Messages a second that the replay sends at most.")
    ] = None,
    store: OptionalStoreUrl = None,
    record: Annotated[
        str | None,
        typer.Option(help="Folder for ledger files, which record what is sent again and when."),
    ] = None,
    file_format: FileFormat = None,
    ledger_format: LedgerFormat = None,
    as_of: AsOf = None,
    grace: Grace = GRACE_SECONDS,
    time_zone: TimeZone = "UTC",
    master: Master = None,
    hop: Hop = DEFAULT_HOP_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Send again what a job has lost, and nothing else.

    Ids and due times stay the same.

    Messages that are pending or unknown are sent again only with --include: they may still arrive.
    Exit code 1 if a message was not sent again.
    """
    options = _options(
        job=job,
        endpoint=endpoint,
        key=key,
        receipts=receipts,
        rejects=rejects,
        rate=rate,
        store=store,
        hop_seconds=hop,
    )

    def run(rows: DataFrame) -> dict[str, Any]:
        from sqsdelay.spark.reconciliation import replay

        return replay(
            rows,
            ledger,
            include=include or ["lost"],
            ledger_format=ledger_format,
            as_of_ms=_as_of_ms(as_of),
            grace_seconds=grace,
            record=record,
            **options,
        )

    started = time.monotonic()
    with err.status(_READING):
        summary = with_table(
            "replay",
            table,
            file_format,
            run,
            time_zone=time_zone,
            master=master,
            sends=options,
        )
    if as_json:
        print_json(summary)
    else:
        out.print(f"{summary['chosen']:,} {' or '.join(include or ['lost'])}", highlight=False)
        print_summary(summary, time.monotonic() - started, rejects)
    if summary["rejected"]:
        raise typer.Exit(1)


def _options(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _as_of_ms(text: str | None) -> int | None:
    return None if text is None else due_at_ms(parse_due_at(text))


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
