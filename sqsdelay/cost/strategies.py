"""Ways to delay messages, each with its bill: SQS hops, parking, and AWS's other schedulers.

Every bill ends with the message in the destination queue. What its receiver pays is the same for
all and left out, as are free tiers, volume discounts and data transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from sqsdelay.core.firing import soonest_seconds
from sqsdelay.cost.bill import Bill, Line
from sqsdelay.cost.lines import (
    dispatcher_line,
    function_lines,
    hop_lines,
    idle_polling,
    last_send,
    schedule_lines,
)
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.s3_store import parked_in_s3, stored_in_s3
from sqsdelay.cost.stored_message import item_bytes, store_lines
from sqsdelay.cost.workload import Workload
from sqsdelay.limits import (
    MAX_DYNAMODB_ITEM_BYTES,
    MAX_MESSAGE_TIMER_SECONDS,
    SCHEDULE_SECONDS,
)

AMENDMENT_READS: Final = 2
"""The delay consumer asks before it decides, and again once it has parked, whether there are amendments:
for a batch of copies, one read each time, where none was left in the last two weeks. Where some were, it
reads each message's."""

IDLE_READ_UNITS: Final = 19
"""What a dispatcher function that finds nothing due reads of a store of eight shards: their leases, twice;
near and far messages of each, twice; the hours. ``benchmarks/cost.py`` meters it."""

STEP_FUNCTIONS_TRANSITIONS: Final = 2
"""The least: a Wait state and a task that sends the message."""

STEP_FUNCTIONS_MAX_SECONDS: Final = 365 * 24 * 3600
"""Longest standard execution. Source: Step Functions quotas."""

SEED_OPERATIONS_PER_CYCLE: Final = 2
"""NServiceBus's documentation counts dequeue and requeue."""


def documented_formula(load: Workload, prices: Prices) -> Bill:
    """NServiceBus's documentation: two FIFO operations per whole cycle of 900 s, nothing else."""
    cycles = load.delay_seconds // MAX_MESSAGE_TIMER_SECONDS if load.hops else 0
    operations = load.messages * cycles * SEED_OPERATIONS_PER_CYCLE
    line = Line(
        what="SQS FIFO requests (2 a cycle)",
        quantity=operations,
        unit_price=prices.sqs_fifo_request,
    )
    return Bill(strategy="formula", lines=(line,))


def relay(load: Workload, prices: Prices) -> Bill:
    """Hops through the delay queue by the Lambda function: send, receive and delete for each."""
    if load.hops == 0:
        return _direct("relay", load, prices)
    return Bill(
        strategy="relay",
        lines=(
            *hop_lines(load, load.hops, prices),
            last_send(load, prices),
            idle_polling(load, prices),
        ),
    )


def parked(load: Workload, prices: Prices) -> Bill:
    """One hop, then a DynamoDB store until the dispatcher function sends it."""
    return _stored("parked", load, prices, hops=1)


def stored_by_sender(load: Workload, prices: Prices) -> Bill:
    """Put into the DynamoDB store by the sender itself: no delay queue at all."""
    return _stored("stored", load, prices, hops=0)


def eventbridge_scheduler(load: Workload, prices: Prices) -> Bill:
    """One one-time schedule per message, its target the queue."""
    line = _invocations(load, prices)
    alone = Workload(
        delay_seconds=0, messages=load.messages, message_bytes=load.message_bytes, batch=1
    )
    return Bill(strategy="eventbridge-scheduler", lines=(line, last_send(alone, prices)))


def scheduled(load: Workload, prices: Prices) -> Bill:
    """One hop, then a schedule, which fires into the delay queue: the last hop makes it exact."""
    return _scheduled("scheduled", load, prices, hops=2)


def scheduled_by_sender(load: Workload, prices: Prices) -> Bill:
    """Scheduled by the sender itself; the delay queue sees the message once its schedule has fired."""
    return _scheduled("scheduled-by-sender", load, prices, hops=1)


def _scheduled(strategy: str, load: Workload, prices: Prices, *, hops: int) -> Bill:
    if load.delay_seconds < soonest_seconds(load.hop_seconds):
        return replace(relay(load, prices), strategy=strategy)
    alone = replace(load, batch=1)
    lines = (
        _invocations(load, prices),
        Line(
            what="SQS FIFO requests (sent by the schedule, one by one)",
            quantity=alone.billed_requests,
            unit_price=prices.sqs_fifo_request,
        ),
        Line(
            what="SQS FIFO requests (received and deleted after it)",
            quantity=load.billed_requests + load.requests,
            unit_price=prices.sqs_fifo_request,
        ),
        *function_lines("delay consumer, after the schedule", load.requests, prices),
        *hop_lines(load, hops - 1, prices),
        last_send(load, prices),
        idle_polling(load, prices),
    )
    return Bill(strategy=strategy, lines=tuple(line for line in lines if line.quantity))


def step_functions(load: Workload, prices: Prices) -> Bill:
    """One standard execution per message: wait, then send to the queue."""
    if load.delay_seconds >= STEP_FUNCTIONS_MAX_SECONDS:
        return Bill(
            strategy="step-functions",
            impossible=f"an execution ends after {STEP_FUNCTIONS_MAX_SECONDS} s (one year), the "
            "send included; use a shorter delay",
        )
    line = Line(
        what=f"Step Functions transitions ({STEP_FUNCTIONS_TRANSITIONS} a message)",
        quantity=load.messages * STEP_FUNCTIONS_TRANSITIONS,
        unit_price=prices.step_functions_transition,
    )
    alone = Workload(
        delay_seconds=0, messages=load.messages, message_bytes=load.message_bytes, batch=1
    )
    return Bill(strategy="step-functions", lines=(line, last_send(alone, prices)))


STRATEGIES: Final[Sequence[Callable[[Workload, Prices], Bill]]] = (
    documented_formula,
    relay,
    parked,
    stored_by_sender,
    parked_in_s3,
    stored_in_s3,
    scheduled,
    scheduled_by_sender,
    eventbridge_scheduler,
    step_functions,
)


def bills(load: Workload, prices: Prices) -> list[Bill]:
    """The bill of every strategy."""
    return [strategy(load, prices) for strategy in STRATEGIES]


def _direct(strategy: str, load: Workload, prices: Prices) -> Bill:
    """A message timer holds it: one send, whatever the strategy."""
    return Bill(strategy=strategy, lines=(last_send(load, prices),))


def _stored(strategy: str, load: Workload, prices: Prices, *, hops: int) -> Bill:
    if load.hops == 0:
        return _direct(strategy, load, prices)
    if item_bytes(load) > MAX_DYNAMODB_ITEM_BYTES:
        return Bill(
            strategy=strategy,
            impossible=f"a DynamoDB item holds {MAX_DYNAMODB_ITEM_BYTES} bytes, this one has "
            f"{item_bytes(load)}; use a PostgreSQL store",
        )
    lines = (
        *store_lines(load, prices),
        last_send(load, prices),
        dispatcher_line(load, prices),
    )
    if hops:
        amendments = Line(
            what="DynamoDB read units (whether any message was cancelled or moved)",
            quantity=load.requests * AMENDMENT_READS,
            unit_price=_read_unit(load, prices),
        )
        lines = (*hop_lines(load, hops, prices), amendments, *lines, idle_polling(load, prices))
    return Bill(strategy=strategy, lines=(*lines, *_idle_dispatcher(load, prices)))


def _read_unit(load: Workload, prices: Prices) -> Fraction:
    return prices.dynamodb_ia_read_unit if load.infrequent_access else prices.dynamodb_read_unit


def _invocations(load: Workload, prices: Prices) -> Line:
    return Line(
        what="EventBridge Scheduler invocations",
        quantity=load.messages,
        unit_price=prices.eventbridge_scheduler_invocation,
    )


def _idle_dispatcher(load: Workload, prices: Prices) -> tuple[Line, ...]:
    runs = load.delay_seconds // SCHEDULE_SECONDS
    reads = Line(
        what=f"DynamoDB read units (dispatcher, every {SCHEDULE_SECONDS} s)",
        quantity=runs * IDLE_READ_UNITS,
        unit_price=_read_unit(load, prices),
        fixed=True,
    )
    return (reads, *schedule_lines(load, prices))
