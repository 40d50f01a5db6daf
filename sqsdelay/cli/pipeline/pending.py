"""``sqsdelay pipeline pending``: how much waits in an S3 store, counted by Spark."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.cost import PricesFile, read_prices
from sqsdelay.cli.options import Master, StoreUrl
from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.cost import dollars

if TYPE_CHECKING:
    from sqsdelay.spark.pending import Pending


def pending(
    store: StoreUrl,
    endpoint: Annotated[
        str | None, typer.Option(help="Only this endpoint; default: all in the store.")
    ] = None,
    prices: PricesFile = None,
    master: Master = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line per endpoint and day.")
    ] = False,
) -> None:
    """Count the messages in an S3 store by endpoint and due day (UTC).

    Reads the objects themselves; for small numbers, use `sqsdelay status`. The cost is the
    remaining one: storage until the messages are due, and their release.
    """
    used = read_prices(prices)
    name = None if endpoint is None else Endpoint.parse(endpoint).name
    from sqsdelay.spark.session import LOCAL, ONE_PROCESS, session

    with (
        TemporaryDirectory(prefix="sqsdelay-") as folder,
        err.status("reading the store with Spark"),
        session("sqsdelay pipeline pending", master=master or LOCAL) as spark,
    ):
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from sqsdelay.spark.archive import archive
        from sqsdelay.spark.failure import failure
        from sqsdelay.spark.pending import pending as read

        if not ONE_PROCESS.fullmatch(master or LOCAL):
            spark.sparkContext.addPyFile(str(archive(Path(folder) / "sqsdelay.zip")))
        try:
            found = read(spark, store, endpoint=name)
        except (PySparkException, Py4JJavaError) as error:
            raise failure(error) from error
    now_ms = time.time_ns() // 1_000_000
    rows = [(each, each.cost(now_ms, used)) for each in found]
    if as_json:
        for each, cost in rows:
            print_json(_as_json(each) | {"cost": f"{float(cost):.9f}", "currency": used.currency})
        return
    table = Table("endpoint", "due on", "messages", "bytes", "stored", used.currency, box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for each, cost in rows:
        table.add_row(*_cells(each), dollars(cost))
    if len(rows) > 1:
        sums = (
            sum(each.messages for each in found),
            sum(each.message_bytes for each in found),
            sum(each.stored_bytes for each in found),
        )
        table.add_row(
            "all",
            "",
            *(f"{n:,}" for n in sums),
            dollars(sum((c for _, c in rows), Fraction())),
            style="bold",
        )
    out.print(table)


def _day(each: Pending) -> str:
    return utc(each.day_ms).date().isoformat()


def _cells(each: Pending) -> list[str]:
    numbers = (each.messages, each.message_bytes, each.stored_bytes)
    return [each.endpoint, _day(each), *(f"{n:,}" for n in numbers)]


def _as_json(each: Pending) -> dict[str, Any]:
    return {
        "endpoint": each.endpoint,
        "due_on": _day(each),
        "messages": each.messages,
        "message_bytes": each.message_bytes,
        "stored_bytes": each.stored_bytes,
    }
