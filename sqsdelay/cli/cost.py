"""``sqsdelay cost`` and ``pipeline cost``: what delays will cost, before anything is deployed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from sqsdelay.cli.console import figures, out, print_json, print_rows, say, show, tell
from sqsdelay.cli.options import DelayOption, PricesFile, whole_seconds
from sqsdelay.cli.spark_job import format_of, on_spark
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.cost.prices import Prices, parse_prices, shipped_prices, shipped_text
from sqsdelay.cost.strategies import OF_STORE, bills, due_queue, recommend, ways
from sqsdelay.cost.workload import TOGETHER, Bill, Workload, dollars
from sqsdelay.errors import InvalidSetting
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SIZE: Final = re.compile(r"(\d{1,12})\s*(B|K|KB|KIB|M|MB|MIB)?", re.ASCII | re.IGNORECASE)
_FACTORS: Final = {"": 1, "B": 1, "K": 1024, "M": 1024 * 1024}


def cost(
    delay: DelayOption = None,
    messages: Annotated[int, Option(help="Number of messages.")] = 1,
    batch: Annotated[int, Option(help=f"Messages in a request, 1 to {MAX_BATCH_ENTRIES}.")] = 1,
    due_together: Annotated[
        int | None,
        Option(help=f"Due in the same minute; default: {TOGETHER:,} if sent in tens, or --batch."),
    ] = None,
    size: Annotated[
        str, Option(help="Size of one message with attributes: 500, 4KB (4,096 bytes), 64K.")
    ] = "1KB",
    own_ids: Annotated[
        bool, Option("--own-ids", help="The senders name the ids, by which messages are found.")
    ] = False,
    every: Annotated[bool, Option("--all", help="Also show every other way, in parts.")] = False,
    prices: PricesFile = None,
    show_prices: Annotated[bool, Option("--show-prices", help="Print the shipped prices.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print every line item as JSON.")] = False,
) -> None:
    """Recommend what to deploy, and name what it costs.

    Costs count up to arrival in the destination queue. Works offline.

    Excludes free tiers, volume discounts, taxes and data transfer.
    """
    if show_prices:
        out.file.write(shipped_text())
        return
    if delay is None:
        raise typer.BadParameter("give a delay, e.g. --delay 365d")
    load = Workload(
        delay_seconds=whole_seconds(delay),
        messages=messages,
        message_bytes=parse_size(size),
        batch=batch,
        due_together=due_together,
        own_ids=own_ids,
    )
    used = read_prices(prices)
    found, advice = bills(load, used), recommend(load, used)
    if as_json:
        given = ("delay_seconds", "messages", "message_bytes", "batch")
        told = {"due_together": load.together, **_dated(used)}
        told["strategies"] = [_record(bill) for bill in found]
        told["recommended"] = [{"deploy": to, "strategy": each.strategy} for to, each in advice]
        print_json({**{name: getattr(load, name) for name in given}, **told})
        return
    _recommend(load, advice, {each.strategy: each for each in found}, used)
    if every:
        _print_ways(load, found)
    _tell_prices(used, "for what each word means, see docs/cost.md")


def _recommend(
    load: Workload, advice: Sequence[tuple[str, Bill]], found: Mapping[str, Bill], used: Prices
) -> None:
    """The best with its sum in words, the two next best, and what one would have without sqsdelay."""
    plain = found["eventbridge-scheduler"]
    for deploy, best in advice[:1]:
        messages = "1 message" if load.messages == 1 else f"{load.messages:,} messages"
        messages += f", {load.together:,} due together" if load.together > 1 else ""
        first = "Best, though late, is" if best.late_seconds else "Recommended is"
        say(f"{first} {best.name} ({deploy}): {dollars(best.total)} {used.currency} for {messages}")
        words = ("CloudWatch", "GB-months", "Logs", "GB-seconds")
        watched, stored, logged, computed = (dollars(best.part(word)) for word in words)
        others = dollars(best.fixed - best.part("CloudWatch"))
        say(
            f"  {dollars(best.for_messages)} for the messages; however few they are, {others} for polls, "
            f"schedules and logs, {watched} for CloudWatch"
        )
        runs = [line.what.partition("(")[2] for line in best.lines if "GB-seconds" in line.what]
        assumed = "; ".join(how.rstrip(")") for how in runs) or "none"
        say(f"  in it storage {stored}, logs {logged}, compute {computed}; assumed: {assumed}")
        fifo = dollars(due_queue(load, used))
        say(f"  not in it: {fifo} more where the destination is a FIFO queue")
        sender = found[OF_STORE.get(deploy.partition("=")[2], "relay")]
        if not sender.impossible and (less := sender.for_messages) < best.for_messages:
            say(f"  {dollars(less)} for the messages if the sender parks them (docs/parking.md)")
        for warning in best.warnings:
            say(f"  {warning}")
    if not advice:
        say(f"None holds them as deployed. {found['relay'].name}: {found['relay'].impossible}")
    for deploy, bill in advice[1:3]:
        say(f"Next: {bill.name} ({deploy}): {_with_warnings(bill)}")
    say(f"Without sqsdelay: {plain.name}: {plain.impossible or _with_warnings(plain)}")
    if any(bill.late_seconds for _, bill in advice[:3]):
        say("Late is reckoned as deployed, if all are sent in one delay; docs/capacity.md has more")


def _with_warnings(bill: Bill) -> str:
    return "; ".join((dollars(bill.total), *bill.warnings))


def _print_ways(load: Workload, found: Sequence[Bill]) -> None:
    rows = []
    for bill in found:
        parts = (bill.for_messages, bill.fixed, bill.total, bill.for_messages / load.messages)
        shown = ["-"] * len(parts) if bill.impossible else [dollars(part) for part in parts]
        rows.append((bill.name, *shown))
        for why in (bill.impossible,) if bill.impossible else bill.warnings:
            tell(f"{bill.name}: {why}")
    print_rows(("way", "messages", "fixed", "total", "a message"), rows, box=None)


def _record(bill: Bill) -> dict[str, Any]:
    named = {"strategy": bill.strategy, "name": bill.name}
    if bill.impossible:
        return named | {"impossible": bill.impossible}
    told = ("for_messages", "fixed", "total", "late_seconds", "warnings")
    lines = [asdict(e) | {"quantity": Fraction(e.quantity), "amount": e.amount} for e in bill.lines]
    return named | {name: getattr(bill, name) for name in told} | {"lines": lines}


def _tell_prices(used: Prices, more: str) -> None:
    tell(f"{used.currency}, {used.region}, prices read on {used.read_on}; {more}")


def _dated(prices: Prices) -> dict[str, Any]:
    return {"currency": prices.currency, "region": prices.region, "prices_read_on": prices.read_on}


def parse_size(text: str) -> int:
    """Bytes of ``500``, ``4KB`` or ``1M``; a KB is 1,024 bytes, as in AWS's limits."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(f"size {text!r} is not valid; use bytes (500), 4KB or 1000KB")
    number, unit = match.groups()
    return int(number) * _FACTORS[(unit or "").upper()[:1]]


def read_prices(path: Path | None) -> Prices:
    """The prices of a file, or the shipped ones."""
    if path is None:
        return shipped_prices()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"price file {path} cannot be read: {error}") from error
    return parse_prices(text, str(path))


DEFAULT_PARK_AFTER: Final = ["1h", f"{DEFAULT_PARK_AFTER_SECONDS}s", "1d"]
"""The middle one is the delay consumer's own."""


def cost_of_table(
    context: typer.Context,
    workload: Annotated[
        str,
        Argument(
            help="Parquet, CSV or JSON lines (.parquet, .csv, .jsonl; the latter two also .gz) with "
            "columns delay_seconds, size (bytes) and, optionally, messages. A table of messages is priced "
            "by `schedule --plan`."
        ),
    ],
    park_after: Annotated[
        list[str], Option(help="Park messages due later than this; repeat it to compare several.")
    ] = DEFAULT_PARK_AFTER,
    prices: PricesFile = None,
    folder: Annotated[Path | None, Option("--out", help="New folder for a Parquet table.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Compare what each way of delaying a table of messages costs.

    The cheapest way for each delay is marked.

    Excludes fixed costs, free tiers, volume discounts and taxes.
    """
    compared = ways([whole_seconds(text) for text in park_after])
    used = read_prices(prices)
    if folder is not None and folder.exists():
        raise InvalidSetting(f"--out {folder} already exists; name a new folder")

    def run(spark: SparkSession) -> list[dict[str, Any]]:
        from sqsdelay.spark.estimate import estimate

        found = estimate(_read(spark, workload), used, compared)
        if folder is not None:
            spark.createDataFrame(found, _SCHEMA).coalesce(1).write.parquet(str(folder))
        return found

    found = on_spark(context, "the workload", run)
    names = [way.name for way in compared]
    table = figures(["delay", "messages", *names], _rows(found, names))
    record = {**_dated(used), "estimates": found}
    show(record, table, as_json=as_json)
    if not as_json:
        _tell_prices(used, "* cheapest; -: some messages are too large")


_SCHEMA: Final = (
    "band string, way string, messages bigint, impossible bigint, "
    "cost decimal(38,18), cheapest boolean"
)


def _read(spark: SparkSession, workload: str) -> DataFrame:
    kind = format_of(workload)
    if kind is None:
        told = "unknown file type; rename it to end in .parquet, .csv or .jsonl"
        raise InvalidSetting(f"workload {workload}: {told}")
    reader = spark.read.options(header=True, primitivesAsString=True)
    return reader.load(workload, format="json" if kind == "jsonl" else kind)


def _rows(found: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for band in dict.fromkeys(each["band"] for each in found):
        cells = [each for each in found if each["band"] == band]
        costs = [("* " if each["cheapest"] else "") + _cost([each]) for each in cells]
        yield band, f"{cells[0]['messages']:,}", *costs
    by_way = [[each for each in found if each["way"] == name] for name in names]
    yield "all", f"{sum(each['messages'] for each in by_way[0]):,}", *map(_cost, by_way)


def _cost(cells: Sequence[dict[str, Any]]) -> str:
    sum_ = Fraction(sum((each["cost"] for each in cells), Decimal(0)))
    return "-" if any(each["impossible"] for each in cells) else dollars(sum_)
