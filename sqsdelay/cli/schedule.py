"""``sqsdelay pipeline schedule`` and ``reconcile``: send a table of messages; what became of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.status import Status
from rich.table import Table
from typer import Argument, Option

from sqsdelay.cli import options
from sqsdelay.cli.console import err, out, print_json, say, tell
from sqsdelay.cli.spark_job import (
    GRACE_SECONDS,
    AsOf,
    EndpointOption,
    FileFormat,
    Grace,
    Job,
    Key,
    LedgerFormat,
    TimeZone,
    with_table,
)
from sqsdelay.limits import DEFAULT_HOP_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS: Final = 0.2


def schedule(
    context: typer.Context,
    table: Annotated[
        str, Argument(metavar="INPUT", help="Parquet, CSV or JSON lines: a file, folder or glob.")
    ],
    endpoint: EndpointOption = None,
    file_format: FileFormat = None,
    key: Key = None,
    job: Job = None,
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
    time_zone: TimeZone = "UTC",
    concurrency: Annotated[int | None, Option(help="Batches in flight per task.")] = None,
    hop: options.Hop = DEFAULT_HOP_SECONDS,
    max_delay: options.MaxDelay = options.DEFAULT_MAX_DELAY,
    replay: Annotated[
        str | None,
        Option(
            metavar="LEDGER", help="Send again only what was lost by this ledger, due as before."
        ),
    ] = None,
    include: Annotated[
        list[str],
        Option(help="With --replay: lost, pending, unknown or not-sent; may be repeated."),
    ] = ["lost"],  # noqa: B006
    ledger_format: LedgerFormat = None,
    as_of: AsOf = None,
    grace: Grace = GRACE_SECONDS,
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
        "max_delay_seconds": options.max_delay_seconds(max_delay),
    }
    chosen = {name: str(value) for name, value in given.items() if value is not None}
    if replay is None and (include != ["lost"] or ledger_format or as_of or grace != GRACE_SECONDS):
        raise typer.BadParameter(
            "--include, --ledger-format, --as-of and --grace are for --replay LEDGER; leave them out"
        )
    if replay is not None and (unique or past_due != "send"):
        raise typer.BadParameter(
            "--replay sends each id once, and at once what is past due; leave out --unique and --past-due"
        )
    if replay is not None and receipts is None:
        raise typer.BadParameter("--replay compares rows with the job's receipts: give --receipts")
    at_ms = options.instant_ms("--as-of", as_of)
    started = time.monotonic()

    def run(rows: DataFrame) -> dict[str, Any]:
        with _progress(rows.sparkSession):
            if replay is None:
                from sqsdelay.spark.sink.send import save

                return save(rows, unique=unique, **chosen)
            from sqsdelay.spark import reconciliation

            return reconciliation.replay(
                rows,
                replay,
                include=include,
                ledger_format=ledger_format,
                as_of_ms=at_ms,
                grace_seconds=grace,
                record=ledger,
                **{name: value for name, value in chosen.items() if name != "ledger"},
            )

    sends = None if plan else chosen
    summary = with_table(
        "schedule", table, file_format, run, time_zone=time_zone, master=context.obj, sends=sends
    )
    if as_json:
        print_json(summary)
    else:
        if replay is not None:
            say(f"{summary['chosen']:,} {' or '.join(include)}")
        _print_summary(summary, time.monotonic() - started, rejects)
    if summary["rejected"] or summary["repeated"]:
        raise typer.Exit(1)


@contextmanager
def _progress(spark: SparkSession) -> Iterator[None]:
    """How many tasks Spark has done, until the block ends."""
    ended = threading.Event()
    with err.status("reading the table with Spark") as told:
        watcher = threading.Thread(target=_watch, args=(spark, told, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _watch(spark: SparkSession, told: Status, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not ended.wait(_POLL_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        if running:
            stage = running[-1]
            doing = "sending" if stage.name.startswith("save") else "reading"
            told.update(f"{doing}: {stage.numCompletedTasks} of {stage.numTasks} tasks")


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
        say(
            f"{summary['repeated']:,} rows repeat the id of another: receivers treat them as copies"
        )
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
    job: Job = None,
    endpoint: EndpointOption = None,
    key: Key = None,
    receipts: Annotated[str | None, Option(help="Folder of receipts, as for `schedule`.")] = None,
    file_format: FileFormat = None,
    ledger_format: LedgerFormat = None,
    as_of: AsOf = None,
    grace: Grace = GRACE_SECONDS,
    time_zone: TimeZone = "UTC",
    folder: Annotated[
        str | None, Option("--out", help="New folder or URI for a Parquet table of all messages.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Compare what a job planned with what was sent and delivered.

    It shows planned, sent, released, delivered and lost messages.

    Compares the job's table with its receipts and the ledger. Lost messages do not change the exit code.
    """
    at_ms = options.instant_ms("--as-of", as_of)
    given = {"job": job, "endpoint": endpoint, "key": key, "receipts": receipts}
    chosen = {name: value for name, value in given.items() if value is not None}

    def run(rows: DataFrame) -> list[dict[str, Any]]:
        from sqsdelay.spark.locations import hadoop_uri
        from sqsdelay.spark.reconciliation import reconcile, totals

        found = reconcile(
            rows, ledger, ledger_format=ledger_format, as_of_ms=at_ms, grace_seconds=grace, **chosen
        )
        if folder is None:
            return totals(found)
        place = hadoop_uri(rows.sparkSession, folder, "--out")
        found.write.mode("errorifexists").parquet(place)
        return totals(rows.sparkSession.read.parquet(place))

    with err.status("reading the table, the receipts and the ledger with Spark"):
        counted = with_table(
            "reconcile", table, file_format, run, time_zone=time_zone, master=context.obj
        )
    if as_json:
        print_json({"endpoints": counted})
    else:
        _print_counts(counted)


_COLUMNS: Final = (
    "planned", "sent", "parked", "released", "at_destination", "delivered", "handed_over", "lost",
    "pending", "unknown", "not_sent", "rejected", "cancelled", "repeated", "unplanned", "replayed",
)  # fmt: skip


def _print_counts(counted: Sequence[dict[str, Any]]) -> None:
    printed = Table("", *(str(row["endpoint"]) for row in counted), box=None)
    for column in printed.columns[1:]:
        column.justify = "right"
    for name in _COLUMNS:
        printed.add_row(name.replace("_", " "), *(f"{row[name]:,}" for row in counted))
    out.print(printed)
