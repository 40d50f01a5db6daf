"""``sqsdelay pipeline cost``: what delaying a whole table of messages will cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.cli.cost import PricesFile, read_prices
from sqsdelay.cli.options import Master
from sqsdelay.cli.pipeline.spark_job import format_of, on_spark
from sqsdelay.core.delay import delay_ms, parse_delay
from sqsdelay.cost import Prices, dollars
from sqsdelay.cost.strategies import ways
from sqsdelay.errors import InvalidSetting
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sqsdelay.spark.estimate import Estimate

DEFAULT_PARK_AFTER: Final = ["1h", f"{DEFAULT_PARK_AFTER_SECONDS}s", "1d"]
"""The middle one is the delay consumer's own."""


def cost(
    workload: Annotated[
        str,
        typer.Argument(
            help="Parquet, CSV or JSON lines (.parquet, .csv, .jsonl; the latter two also .gz) with "
            "columns delay_seconds, size (bytes) and, optionally, messages; or a table of messages, as "
            "`schedule` reads it."
        ),
    ],
    park_after: Annotated[
        list[str],
        typer.Option(help="Park messages due later than this; repeat it to compare several."),
    ] = DEFAULT_PARK_AFTER,
    prices: PricesFile = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="New folder for the estimate, a Parquet table.")
    ] = None,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Compare what each way of delaying a table of messages costs.

    The cheapest way for each delay is marked.

    Excludes fixed costs, free tiers, volume discounts and taxes.
    """
    compared = ways([-(-delay_ms(parse_delay(text)) // 1000) for text in park_after])
    used = read_prices(prices)
    if folder is not None and folder.exists():
        raise InvalidSetting(f"--out {folder} already exists; name a new folder")

    def run(spark: SparkSession) -> list[Estimate]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from sqsdelay.spark.estimate import estimate
        from sqsdelay.spark.session import failure

        try:
            found = estimate(_read(spark, workload), used, compared)
            if folder is not None:
                _write(spark, found, folder)
        except (PySparkException, Py4JJavaError) as error:
            why = failure(error)
            raise type(why)(f"the cost of {workload} failed: {why}") from error
        return found

    with err.status("reading the workload with Spark"):
        found = on_spark("cost", run, master=master)
    if as_json:
        print_json(_as_json(found, used))
    else:
        _print(found, [way.name for way in compared], used)


_SCHEMA: Final = (
    "band string, way string, messages bigint, impossible bigint, "
    "cost decimal(38,18), cheapest boolean"
)


def _write(spark: SparkSession, found: Sequence[Estimate], folder: Path) -> None:
    rows = [asdict(each) for each in found]
    spark.createDataFrame(rows, _SCHEMA).coalesce(1).write.parquet(str(folder))


def _read(spark: SparkSession, workload: str) -> DataFrame:
    kind = format_of(workload)
    if kind is None:
        raise InvalidSetting(
            f"workload {workload}: unknown file type; rename it to end in .parquet, .csv or .jsonl"
        )
    reader = spark.read.options(header=True, primitivesAsString=True)
    rows = reader.load(workload, format="json" if kind == "jsonl" else kind)
    names = {column.lower() for column in rows.columns}
    if "size" in names or not {"body", "due_at"} & names:
        return rows
    from sqsdelay.spark.estimate import as_workload
    from sqsdelay.spark.sink.send import read_table

    return as_workload(read_table(spark, workload, kind))


def _print(found: Sequence[Estimate], names: Sequence[str], prices: Prices) -> None:
    table = Table("delay", "messages", *names, box=None)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for band in dict.fromkeys(each.band for each in found):
        cells = [each for each in found if each.band == band]
        table.add_row(band, f"{cells[0].messages:,}", *[_cell(each) for each in cells])
    totals = [[each for each in found if each.way == name] for name in names]
    summed = [sum((each.cost for each in cells), Decimal(0)) for cells in totals]
    too_large = [sum(each.impossible for each in cells) for cells in totals]
    everyone = sum(each.messages for each in totals[0])
    shown = [
        "-" if impossible else _amount(total)
        for total, impossible in zip(summed, too_large, strict=True)
    ]
    table.add_row("all", f"{everyone:,}", *shown, style="bold")
    out.print(table)
    err.print(
        f"{prices.currency}, {prices.region}, prices read on {prices.read_on}; * cheapest; "
        "-: some messages are too large",
        highlight=False,
        soft_wrap=True,
    )


def _cell(each: Estimate) -> str:
    if each.impossible:
        return "-"
    return ("* " if each.cheapest else "") + _amount(each.cost)


def _amount(cost: Decimal) -> str:
    return dollars(Fraction(cost))


def _as_json(found: Sequence[Estimate], prices: Prices) -> dict[str, Any]:
    return {
        "currency": prices.currency,
        "region": prices.region,
        "prices_read_on": prices.read_on.isoformat(),
        "estimates": [{**asdict(each), "cost": f"{each.cost:f}"} for each in found],
    }
