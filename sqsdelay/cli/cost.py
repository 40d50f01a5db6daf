"""``sqsdelay cost``: what a delay will cost, before anything is deployed."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sqsdelay.cli.console import err, out, print_json, print_rows, say, tell
from sqsdelay.core.delay import delay_ms, parse_delay
from sqsdelay.cost import (
    Bill,
    Prices,
    Recommendation,
    Workload,
    bills,
    dollars,
    parse_prices,
    recommend,
    shipped_prices,
    shipped_text,
)
from sqsdelay.cost.workload import DISPATCH_MS, FUNCTION_MS, TOGETHER
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import MAX_BATCH_ENTRIES

_SIZE: Final = re.compile(r"(\d{1,12})\s*(B|K|KB|KIB|M|MB|MIB)?", re.ASCII | re.IGNORECASE)
_FACTORS: Final = {"": 1, "B": 1, "K": 1024, "M": 1024 * 1024}
PricesFile = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        help="Your own price file instead of the shipped one.",
        exists=True,
        dir_okay=False,
    ),
]


def cost(
    delay: Annotated[
        str | None, typer.Option(help="Delay: seconds (90), 32m5s, 365d or ISO 8601 (PT32M5S).")
    ] = None,
    messages: Annotated[int, typer.Option(help="Number of messages.")] = 1,
    batch: Annotated[
        int,
        typer.Option(help=f"Messages sent in one request, 1 to {MAX_BATCH_ENTRIES}."),
    ] = 1,
    due_together: Annotated[
        int | None,
        typer.Option(
            help="Messages that fall due in the same minute; 1 where they are due apart. By default "
            f"{TOGETHER:,} of those sent in tens, else as many as --batch."
        ),
    ] = None,
    size: Annotated[
        str, typer.Option(help="Size of one message with attributes: 500, 4KB (4,096 bytes), 1MB.")
    ] = "1KB",
    infrequent_access: Annotated[
        bool,
        typer.Option(
            "--infrequent-access", help="The DynamoDB store's table is of the class Standard-IA."
        ),
    ] = False,
    own_ids: Annotated[
        bool,
        typer.Option("--own-ids", help="The senders name ids, which do not tell due times."),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also show every other way, and what it is made of.")
    ] = False,
    prices: PricesFile = None,
    show_prices: Annotated[
        bool, typer.Option("--show-prices", help="Print the shipped price file and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every line item as JSON.")] = False,
) -> None:
    """Name the cheapest way to deploy, and what it costs.

    Costs count up to arrival in the destination queue.

    Works offline. Excludes free tiers, volume discounts, taxes and data transfer.
    """
    if show_prices:
        out.file.write(shipped_text())
        return
    if delay is None:
        raise typer.BadParameter("give a delay, e.g. --delay 365d")
    load = Workload(
        delay_seconds=-(-delay_ms(parse_delay(delay)) // 1000),
        messages=messages,
        message_bytes=parse_size(size),
        batch=batch,
        due_together=due_together,
        own_ids=own_ids,
        infrequent_access=infrequent_access,
    )
    used = read_prices(prices)
    found, advice = bills(load, used), recommend(load, used)
    if as_json:
        print_json(_as_json(load, used, found) | _advice_as_json(advice))
        return
    plain = next(each for each in found if each.strategy == "eventbridge-scheduler")
    _recommend(load, advice, plain, used.currency)
    if every:
        _print(load, found)
    err.print(
        f"{used.currency}, {used.region}, prices read on {used.read_on}; "
        "for what each word means, see docs/cost.md",
        highlight=False,
        soft_wrap=True,
    )


def _recommend(load: Workload, advice: Recommendation, plain: Bill, currency: str) -> None:
    """The cheapest with its sum in words, the two next best, and what one would have without sqsdelay."""
    best, watched = advice.bill, advice.bill.part("CloudWatch")
    messages = "1 message" if load.messages == 1 else f"{load.messages:,} messages"
    say(
        f"Cheapest is {best.name} ({advice.deploy}): {dollars(best.total)} {currency} for {messages}"
    )
    say(
        f"  {dollars(best.for_messages)} for the messages; however few they are, "
        f"{dollars(best.fixed - watched)} for polls and schedules, {dollars(watched)} for CloudWatch"
    )
    say(
        f"  in it storage {dollars(best.part('GB-months'))}, compute {dollars(best.part('GB-seconds'))} "
        f"(assumed: {FUNCTION_MS} ms a batch, {DISPATCH_MS} ms a released message)"
    )
    if load.own_ids and advice.deploy == "-c store=s3":
        say("  messages with ids of your own could not be found in it, to cancel or move them")
    for deploy, bill in advice.others[:2]:
        say(f"Next: {bill.name} ({deploy}): {dollars(bill.total)}")
    say(f"Without sqsdelay: {plain.name}: {plain.impossible or dollars(plain.total)}")


def parse_size(text: str) -> int:
    """Bytes of ``500``, ``4KB`` or ``1MB``; a KB is 1,024 bytes, as in AWS's limits.

    Raises:
        ConfigurationError: anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(f"size {text!r} is not valid; use bytes (500), 4KB or 1MB")
    number, unit = match.groups()
    return int(number) * _FACTORS[(unit or "").upper()[:1]]


def read_prices(path: Path | None) -> Prices:
    """The prices of a file, or the shipped ones.

    Raises:
        ConfigurationError: it cannot be read, or is no price file.
    """
    if path is None:
        return shipped_prices()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"price file {path} cannot be read: {error}") from error
    return parse_prices(text, str(path))


def _print(load: Workload, found: list[Bill]) -> None:
    rows = []
    for bill in found:
        parts = (bill.for_messages, bill.fixed, bill.total, bill.for_messages / load.messages)
        shown = ["-"] * len(parts) if bill.impossible else [dollars(part) for part in parts]
        rows.append((bill.name, *shown))
        if bill.impossible:
            tell(f"{bill.name}: {bill.impossible}")
    print_rows(("way", "messages", "fixed", "total", "a message"), rows, box=None)


def _as_json(load: Workload, prices: Prices, found: list[Bill]) -> dict[str, Any]:
    return {
        "delay_seconds": load.delay_seconds,
        "messages": load.messages,
        "message_bytes": load.message_bytes,
        "batch": load.batch,
        "due_together": load.together,
        "currency": prices.currency,
        "region": prices.region,
        "prices_read_on": prices.read_on.isoformat(),
        "strategies": [_bill_as_json(bill) for bill in found],
    }


def _advice_as_json(advice: Recommendation) -> dict[str, Any]:
    others = {deploy: _exact(bill.total) for deploy, bill in advice.others}
    return {
        "recommended": advice.deploy,
        "totals": {advice.deploy: _exact(advice.bill.total), **others},
    }


def _bill_as_json(bill: Bill) -> dict[str, Any]:
    named = {"strategy": bill.strategy, "name": bill.name}
    if bill.impossible:
        return named | {"impossible": bill.impossible}
    return named | {
        "for_messages": _exact(bill.for_messages),
        "fixed": _exact(bill.fixed),
        "total": _exact(bill.total),
        "lines": [
            {
                "what": line.what,
                "quantity": _exact(Fraction(line.quantity)),
                "unit_price": _exact(line.unit_price),
                "amount": _exact(line.amount),
                "fixed": line.fixed,
            }
            for line in bill.lines
        ],
    }


def _exact(value: Fraction) -> str:
    """A decimal number as text, with every digit it has, 28 at most."""
    text = f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
