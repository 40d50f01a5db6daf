"""``sqsdelay pipeline``: send a table of messages; what became of them, by a ledger; a ledger as a table."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from typer import Argument, Option

from sqsdelay.cli import options, spark_job
from sqsdelay.cli.console import figures, print_json, say, show, tell
from sqsdelay.cli.cost import read_prices
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.errors import MissingExtra
from sqsdelay.spark.session import GRACE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def schedule(
    context: typer.Context,
    table: Annotated[
        str, Argument(metavar="INPUT", help="Parquet, CSV or JSON lines: a file, folder or glob.")
    ],
    endpoint: spark_job.EndpointOption = None,
    file_format: spark_job.FileFormat = None,
    key: spark_job.Key = None,
    job: spark_job.Job = None,
    rejects: Annotated[str | None, Option(help="Folder for unsent rows, with the reason.")] = None,
    receipts: Annotated[
        str | None,
        Option(
            help="Folder of what the job (--job) sent: run again, it sends the rest, due as before."
        ),
    ] = None,
    unique: Annotated[bool, Option("--unique", help="Send nothing if an id occurs twice.")] = False,
    plan: Annotated[
        bool,
        Option("--plan", help="Send nothing: print rejects, repeated ids, routes, costs, time."),
    ] = False,
    past_due: Annotated[
        str, Option(help="What to do with rows whose due_at has passed: send (at once) or reject.")
    ] = "send",
    rate: Annotated[int | None, Option(help="Most messages a second of the whole job.")] = None,
    store: options.OptionalStoreUrl = None,
    park_after: Annotated[
        str | None,
        Option(help="Rows due later than this are parked in the store at once, e.g. 1d."),
    ] = None,
    ledger: Annotated[
        str | None, Option(help="Folder for ledger files, which record what was sent and when.")
    ] = None,
    time_zone: spark_job.TimeZone = "UTC",
    concurrency: Annotated[int | None, Option(help="Batches in flight per task.")] = None,
    hop: options.Hop = DEFAULT_HOP_SECONDS,
    max_delay: options.MaxDelay = options.DEFAULT_MAX_DELAY,
    replay: Annotated[
        str | None,
        Option(metavar="LEDGER", help="Send only what is lost by this ledger, due as before."),
    ] = None,
    include: Annotated[
        list[str],
        Option(help="With --replay: lost (default), pending, unknown, not-sent; may be repeated."),
    ] = [],  # noqa: B006
    ledger_format: spark_job.LedgerFormat = None,
    as_of: spark_job.AsOf = None,
    grace: spark_job.Grace = GRACE_SECONDS,
    as_json: Annotated[bool, Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Send every row of a table as a delayed message.

    Exit code 1 if any was not sent, or an id occurs more than once. With --replay it sends again what was
    lost; messages that are pending or unknown only with --include, since they may still arrive.

    Columns: body; delay_seconds or due_at; message_id, or --key with --job. Optional: endpoint,
    attributes, message_group_id, message_deduplication_id.
    """
    given = {
        "endpoint": endpoint,
        "key": key,
        "job": job,
        "rejects": rejects,
        "receipts": receipts,
        "plan": "true" if plan else None,
        "past_due": past_due,
        "rate": rate,
        "store": store,
        "park_after": None if park_after is None else options.whole_seconds(park_after),
        "ledger": ledger,
        "concurrency": concurrency,
        "hop_seconds": hop,
        "max_delay_seconds": max_delay,
    }
    chosen = {name: str(value) for name, value in given.items() if value is not None}
    if replay is None and (include, ledger_format, as_of, grace) != ([], None, None, GRACE_SECONDS):
        raise typer.BadParameter(
            "--include, --ledger-format, --as-of and --grace are for --replay LEDGER; leave them out"
        )
    if replay is not None and (unique or past_due != "send"):
        raise typer.BadParameter(
            "--replay sends each id once, and at once what is past due; leave out --unique and --past-due"
        )
    if replay is not None and receipts is None:
        raise typer.BadParameter("--replay compares rows with the job's receipts: give --receipts")
    include = include or ["lost"]
    started = time.monotonic()

    def run(rows: DataFrame) -> dict[str, Any]:
        if replay is None:
            from sqsdelay.spark.sink.send import save

            return save(rows, unique=unique, **chosen)
        from sqsdelay.spark import reconciliation

        return reconciliation.replay(
            rows,
            replay,
            include=include,
            ledger_format=ledger_format,
            as_of_ms=as_of,
            grace_seconds=grace,
            record=ledger,
            **{name: value for name, value in chosen.items() if name != "ledger"},
        )

    more = {"time_zone": time_zone, "sends": None if plan else chosen}
    summary = spark_job.with_table(context, "the table", table, file_format, run, **more)
    if as_json:
        print_json(summary)
    else:
        if replay is not None:
            say(f"{summary['chosen']:,} {' or '.join(include)}")
        _print_summary(summary, time.monotonic() - started, rejects)
    if summary["rejected"] or summary["repeated"]:
        raise typer.Exit(1)


def _print_summary(summary: dict[str, Any], seconds: float, rejects: str | None) -> None:
    """What was sent, and what was not and why."""
    routes = ", ".join(f"{number:,} {route}" for route, number in summary["routes"].items())
    by_route = f" ({routes})" if routes else ""
    plan = summary.get("plan")
    done = "sent" if plan is None else "to be sent"
    say(f"{summary['sent']:,} {done}{by_route} in {seconds:,.0f} s")
    if plan is not None:
        _print_plan(plan)
    if summary["already_sent"]:
        say(f"{summary['already_sent']:,} sent by an earlier run")
    if summary["repeated"]:
        say(f"{summary['repeated']:,} rows repeat another's id: receivers treat them as copies")
    if summary["rejected"]:
        kept = "" if rejects is None else f": kept in {rejects}"
        say(f"{summary['rejected']:,} not sent{kept}")
        for kind, reason in summary["reasons"].items():
            say(f"  {reason['rows']:,} {kind}, e.g. {reason['example']}")


def _print_plan(plan: dict[str, Any]) -> None:
    say(f"{plan['seconds_at_quota']:,} s at the delay queue's quota")
    for name, cost in plan["costs"].items():
        shown = "too large" if cost is None else f"{cost} {plan['currency']}"
        mark = " (this job)" if name == plan["way"] else ""
        say(f"  {name}{mark}: {shown}")
    for warning in plan["warnings"]:
        tell(f"warning: {warning}")


def reconcile(
    context: typer.Context,
    table: Annotated[str, Argument(metavar="INPUT", help="The table that `schedule` was given.")],
    ledger: Annotated[str, Argument(help="The ledger, as `report` takes it.")],
    job: spark_job.Job = None,
    endpoint: spark_job.EndpointOption = None,
    key: spark_job.Key = None,
    receipts: Annotated[str | None, Option(help="Folder of receipts, as for `schedule`.")] = None,
    file_format: spark_job.FileFormat = None,
    ledger_format: spark_job.LedgerFormat = None,
    as_of: spark_job.AsOf = None,
    grace: spark_job.Grace = GRACE_SECONDS,
    time_zone: spark_job.TimeZone = "UTC",
    folder: Annotated[
        str | None, Option("--out", help="New folder or URI for a Parquet table of all messages.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Compare what a job planned with what was sent and delivered.

    It shows planned, sent, released, delivered and lost messages.

    Compares the job's table with its receipts and the ledger. Lost messages do not change the exit code.
    """
    given = {"job": job, "endpoint": endpoint, "key": key, "receipts": receipts}

    def run(rows: DataFrame) -> list[dict[str, Any]]:
        from sqsdelay.spark.reconciliation import reconcile, totals
        from sqsdelay.spark.session import hadoop_uri

        found = reconcile(
            rows, ledger, ledger_format=ledger_format, as_of_ms=as_of, grace_seconds=grace, **given
        )
        if folder is None:
            return totals(found)
        place = hadoop_uri(rows.sparkSession, folder, "--out")
        found.write.mode("errorifexists").parquet(place)
        return totals(rows.sparkSession.read.parquet(place))

    reads = "the table, the receipts and the ledger"
    counted = spark_job.with_table(context, reads, table, file_format, run, time_zone=time_zone)
    show({"endpoints": counted}, _table(counted), as_json=as_json)


_COLUMNS: Final = (
    "planned", "sent", "parked", "released", "at_destination", "delivered", "handed_over", "lost",
    "pending", "unknown", "not_sent", "rejected", "cancelled", "repeated", "unplanned", "replayed",
)  # fmt: skip


def _table(counted: Sequence[dict[str, Any]]) -> Table:
    rows = ((n.replace("_", " "), *(f"{row[n]:,}" for row in counted)) for n in _COLUMNS)
    return figures(["", *(str(row["endpoint"]) for row in counted)], rows)


def report(
    context: typer.Context,
    ledger: Annotated[
        str,
        Argument(help="JSON lines, plain or .gz: file, folder, glob or URI; or a table's name."),
    ],
    folder: Annotated[
        str, Option("--out", help="Folder or URI for the report; replaces an earlier one.")
    ],
    as_of: spark_job.AsOf = None,
    grace: spark_job.Grace = GRACE_SECONDS,
    ledger_format: Annotated[
        str | None,
        Option("--format", help="The ledger holds rows, not lines: parquet, delta, iceberg, …"),
    ] = None,
    prices: options.PricesFile = None,
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
    except ImportError as error:
        raise MissingExtra(
            f"the report requires further packages ({error}): pip install 'sqsdelay[spark,report]'"
        ) from error
    used = read_prices(prices)

    def run(spark: SparkSession) -> dict[str, Any]:
        return write_report(
            spark,
            ledger,
            folder,
            ledger_format=ledger_format,
            prices=used,
            store=store,
            as_of_ms=as_of,
            grace_seconds=grace,
        )

    found = spark_job.on_spark(context, "the ledger", run)
    last_seen = [
        f"{row['messages']:,} {row['status']} of {row['endpoint']}: "
        + (f"last seen in the {row['last_seen']}" if row["last_seen"] else "never seen")
        for row in found["last_seen"]
    ]
    page = f"{folder.rstrip('/')}/report.html"
    show(found, figures(["", ""], _rows(found)), *last_seen, page, as_json=as_json)


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in (
        "messages", "lost", "pending", "unknown", "delivered", "handed_over", "rejected", "cancelled",
        "duplicated", "early", "lines", "bad_lines",
    ):  # fmt: skip
        yield name.replace("_", " "), f"{found[name]:,}"
    for name, share in (("1 s", found["within_1s"]), ("60 s", found["within_60s"])):
        if share is not None:
            yield f"arrived within {name}", f"{100 * share:.2f} %"
    for name, ms in (("median lateness", found["p50_ms"]), ("latest", found["max_ms"])):
        if ms is not None:
            yield name, f"{ms / 1000:,.3f} s"


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

    appended, bad_lines = spark_job.on_spark(context, "the ledger", run)
    line = f"{appended:,} events appended, {bad_lines:,} bad lines left out"
    show({"events": appended, "bad_lines": bad_lines}, line, as_json=as_json)
