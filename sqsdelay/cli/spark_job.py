"""What the commands of `sqsdelay pipeline` share: options, Spark, errors of one line, an end by Ctrl-C."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from rich.status import Status
from typer import Option

from sqsdelay.cli.console import err, tell
from sqsdelay.cli.options import time_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JSON_LINES: Final = dict.fromkeys((".json", ".jsonl", ".ndjson"), "jsonl")
_FORMATS: Final = {".parquet": "parquet", ".csv": "csv", **_JSON_LINES}
EXIT_INTERRUPTED: Final = 130
"""Of a command that Ctrl-C ends, as shells have it: 128 and the signal's number."""
_RESUMED: Final = ": run the same command again, and it sends the rest"
_REPEATED: Final = (
    ": run again, it sends all rows again, with the same message ids; with --receipts FOLDER it would "
    "send the rest"
)
Job = Annotated[str | None, Option(help="Job name; the same name gives the same message ids.")]
Key = Annotated[str | None, Option(help="Column to derive message ids from (with --job).")]
EndpointOption = Annotated[str | None, Option(help="Queue of rows without an endpoint column.")]
FileFormat = Annotated[
    str | None, Option("--format", help="parquet, csv or jsonl; default: by file name.")
]
TimeZone = Annotated[str, Option(help="Time zone of due times without an offset.")]
LedgerFormat = Annotated[
    str | None, Option(help="The ledger holds rows, not lines: parquet, delta, iceberg, …")
]
AsOf = Annotated[
    int | None,
    time_option("Ignore events after this time, e.g. 2027-01-31T09:00:00Z; default: none."),
]
Grace = Annotated[int, Option(help="Seconds after its due time until a message counts as lost.")]
_Found = TypeVar("_Found")


def pipeline(
    context: typer.Context,
    master: Annotated[str | None, Option(help="Spark master; default: this machine.")] = None,
) -> None:
    """Spark jobs over millions of messages."""
    context.obj = master


def format_of(table: str, told: str | None = None) -> str | None:
    """How the input holds its rows; None if neither its name nor --format says so."""
    chosen = told or _FORMATS.get(Path(table.removesuffix(".gz").rstrip("/")).suffix)
    return chosen if chosen in _FORMATS.values() else None


def on_spark(
    context: typer.Context,
    reads: str,
    run: Callable[[SparkSession], _Found],
    *,
    time_zone: str = "UTC",
    sends: Mapping[str, Any] | None = None,
) -> _Found:
    """What a command does with Spark, and how far it is meanwhile. ``reads``: what, in words. ``sends``: the
    options of what it sends; None if it sends nothing."""
    from sqsdelay.spark.session import LOCAL, ONE_PROCESS, session

    master = context.obj or LOCAL
    with (
        err.status(f"reading {reads} with Spark") as told,
        _ended_by_ctrl_c(sends) as interruptible,
        TemporaryDirectory(prefix="sqsdelay-") as folder,
        session(context.command_path, master=master, time_zone=time_zone) as spark,
        _progress(spark, told, sending=sends is not None),
    ):
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from sqsdelay.spark.archive import archive
        from sqsdelay.spark.session import failure

        if not ONE_PROCESS.fullmatch(master):
            spark.sparkContext.addPyFile(str(archive(Path(folder) / "sqsdelay.zip")))
        try:
            with interruptible(spark):
                return run(spark)
        except (PySparkException, Py4JJavaError) as error:
            raise failure(error) from error


def with_table(
    context: typer.Context,
    reads: str,
    table: str,
    file_format: str | None,
    run: Callable[[DataFrame], _Found],
    **more: Any,
) -> _Found:
    """What a command does with the rows of a file; see `on_spark`."""
    chosen = format_of(table, file_format)
    if chosen is None or (table.endswith(".gz") and file_format is None):
        raise typer.BadParameter(f"give --format parquet, csv or jsonl for {table}")

    def read(spark: SparkSession) -> _Found:
        from sqsdelay.spark.sink.send import read_table

        return run(read_table(spark, table, chosen))

    return on_spark(context, reads, read, **more)


@contextmanager
def _progress(spark: SparkSession, told: Status, *, sending: bool) -> Iterator[None]:
    """Tell how many tasks Spark has done, until the block ends."""
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if running := [stage for stage in stages if stage is not None]:
                stage = running[-1]
                doing = "sending" if sending and stage.name.startswith("save") else "reading"
                told.update(f"{doing}: {stage.numCompletedTasks} of {stage.numTasks} tasks")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextmanager
def _ended_by_ctrl_c(sends: Mapping[str, Any] | None) -> Iterator[Callable[[SparkSession], Any]]:
    """One line and an exit code; what is being sent ends where it is."""
    pressed, running = threading.Event(), list[Any]()

    def cancel() -> None:
        for spark in running:
            spark.sparkContext.cancelAllJobs()

    # Tasks that were told to stop note what they have sent; then Spark is told to end them.
    patience = threading.Timer(5.0, cancel)
    patience.daemon = True

    def stop(*_: object) -> None:
        again = pressed.is_set()
        pressed.set()
        if running and not again and sends is not None and "receipts" in sends:
            patience.start()
            from sqsdelay.spark.sink.receipts import Receipts

            Receipts(str(sends["receipts"]), str(sends["job"])).stop()
        elif running or again:  # A start that is broken off would leave Spark's Java behind.
            canceller = threading.Thread(target=cancel, daemon=True)
            canceller.start()  # This thread itself may await an answer.
            canceller.join(patience.interval)
            logging.disable()  # Or py4j tells where it was, in a traceback.
            raise KeyboardInterrupt

    @contextmanager
    def interruptible(spark: SparkSession) -> Iterator[None]:
        """Spark has a handler of its own, which kills the tasks before they have noted anything."""
        signal.signal(signal.SIGINT, stop)
        try:
            if pressed.is_set():
                raise KeyboardInterrupt
            running.append(spark)
            yield
        finally:
            running.clear()
            patience.cancel()  # The job has ended: nothing is left to cancel, and soon no session.

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interruptible
    except BaseException as error:
        if not pressed.is_set() and not isinstance(error, KeyboardInterrupt):
            raise
        told = "" if sends is None else _RESUMED if "receipts" in sends else _REPEATED
        tell(f"stopped{told}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        logging.disable(logging.NOTSET)
        signal.signal(signal.SIGINT, before)
