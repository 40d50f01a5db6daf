"""What a message costs that waits in S3, many to an object."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Final

from sqsdelay.cost.bill import Bill, Line
from sqsdelay.cost.lines import (
    dispatcher_line,
    hop_lines,
    hop_requests,
    idle_polling,
    last_send,
    schedule_lines,
)
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.stored_message import MONTH_SECONDS
from sqsdelay.cost.workload import CHUNK_BYTES, Workload
from sqsdelay.limits import GATHERING_SECONDS, MAX_BATCH_ENTRIES
from sqsdelay.parking.settings import DEFAULT_PARK_AFTER_SECONDS

GROUP: Final = 5_000
"""Messages a worker writes as one object, where many arrive together."""

RELEASED: Final = 500
"""Messages of a dispatcher's batch, where many are due together; a lease and a checkpoint are written."""

WRITES_PER_MESSAGE: Final = Fraction(1, 80)
"""Writes and listings while messages wait and are released, where they are many: slots are split and
merged, leased, checkpointed. ``benchmarks/s3_store.py`` counts them and fails above this."""

READS_PER_MESSAGE: Final = Fraction(1, 100)
"""The same for reads."""

LINE_BYTES: Final = 60
"""Of an object's line besides the body, compressed: id, due time, names. Bodies are not counted on to
compress."""

RECEIVERS: Final = 2
"""Long polls of a worker."""

LOOK_SECONDS: Final = 60
"""How often a dispatcher lists what has come near."""

_GB: Final = 2**30


def parked_in_s3(load: Workload, prices: Prices) -> Bill:
    """One hop, then an S3 store until the dispatcher sends it: worker and dispatcher run elsewhere."""
    return _in_s3("parked-in-s3", load, prices, hops=1)


def stored_in_s3(load: Workload, prices: Prices) -> Bill:
    """Put into the S3 store by the sender itself."""
    return _in_s3("stored-in-s3", load, prices, hops=0)


def stored_in_s3_by_id(load: Workload, prices: Prices) -> Bill:
    """The same with a look-up object for each message, whose id is its sender's."""
    bill = stored_in_s3(load, prices)
    if load.hops == 0:
        return bill
    line = Line(
        what="S3 PUT requests (look-up objects)",
        quantity=load.messages,
        unit_price=prices.s3_put,
    )
    return replace(bill, lines=(*bill.lines, line))


def parked_in_s3_by_functions(load: Workload, prices: Prices) -> Bill:
    """As ``-c store=s3`` deploys it: one hop, the parking queue, then S3 until the dispatcher function
    sends it. What is due sooner than is parked hops on."""
    strategy = "parked-in-s3-by-functions"
    if load.hops == 0:
        return Bill(strategy=strategy, lines=(last_send(load, prices),))
    parks = load.delay_seconds > DEFAULT_PARK_AFTER_SECONDS + load.hop_seconds
    stored = (
        _parking_queue(load, prices),
        *_store_lines(load, prices),
        dispatcher_line(load, prices),
    )
    return Bill(
        strategy=strategy,
        lines=(
            *hop_lines(load, 1 if parks else load.hops, prices),
            *(stored if parks else ()),
            last_send(load, prices),
            idle_polling(load, prices),
            Line(
                what=f"SQS standard requests (parking queue, every {GATHERING_SECONDS} s)",
                quantity=load.delay_seconds // GATHERING_SECONDS,
                unit_price=prices.sqs_standard_request,
                fixed=True,
            ),
            *schedule_lines(
                load, prices, every_seconds=GATHERING_SECONDS, schedule="parking schedule"
            ),
            _looks(load, prices),
            *schedule_lines(load, prices),
        ),
    )


def _parking_queue(load: Workload, prices: Prices) -> Line:
    """Copies that shared a request to the delay queue share a message; ten of these are received and
    deleted at a time, and a receive is billed for each 64 KiB begun."""
    together = MAX_BATCH_ENTRIES if load.batch == MAX_BATCH_ENTRIES else 1
    calls = -(-load.requests // together)
    received = max(calls, -(-load.messages * load.message_bytes // CHUNK_BYTES))
    return Line(
        what="SQS standard requests (parking queue: send, receive, delete)",
        quantity=load.billed_requests + received + calls,
        unit_price=prices.sqs_standard_request,
    )


def _in_s3(strategy: str, load: Workload, prices: Prices, *, hops: int) -> Bill:
    if load.hops == 0:
        return Bill(strategy=strategy, lines=(last_send(load, prices),))
    lines = (*_store_lines(load, prices), last_send(load, prices))
    if hops:
        polling = idle_polling(load, prices, pollers=RECEIVERS)
        lines = (hop_requests(load, hops, prices), *lines, polling)
    return Bill(strategy=strategy, lines=(*lines, _looks(load, prices)))


def _store_lines(load: Workload, prices: Prices) -> tuple[Line, ...]:
    """Messages that share no request are apart here, too: each is an object, and released by itself."""
    together = load.batch == MAX_BATCH_ENTRIES
    written = -(-load.messages // (GROUP if together else load.batch))
    releases = -(-load.messages // (RELEASED if together else load.batch))
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    stored = load.messages * (load.message_bytes + LINE_BYTES)
    return (
        Line(what="S3 PUT requests (groups)", quantity=written, unit_price=prices.s3_put),
        Line(
            what="S3 PUT and LIST requests (split, merge, lease, checkpoint)",
            quantity=max(Fraction(2 * releases), load.messages * WRITES_PER_MESSAGE),
            unit_price=prices.s3_put,
        ),
        Line(
            what="S3 GET requests",
            quantity=max(Fraction(2 * releases), load.messages * READS_PER_MESSAGE),
            unit_price=prices.s3_get,
        ),
        Line(
            what="S3 storage, GB-months",
            quantity=Fraction(stored, _GB) * months,
            unit_price=prices.s3_gb_month,
        ),
    )


def _looks(load: Workload, prices: Prices) -> Line:
    return Line(
        what=f"S3 LIST requests (dispatcher, every {LOOK_SECONDS} s)",
        quantity=load.delay_seconds // LOOK_SECONDS,
        unit_price=prices.s3_put,
        fixed=True,
    )
