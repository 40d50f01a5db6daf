"""Positions that several ways to delay share: SQS requests, and time of functions."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sqsdelay.cost.bill import Line
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.workload import Workload
from sqsdelay.limits import (
    DELAY_CONSUMER_MEMORY_MB,
    DISPATCHER_MEMORY_MB,
    MAX_RECEIVE_WAIT_SECONDS,
    SCHEDULE_SECONDS,
)

FUNCTION_MS: Final = 100
"""Assumed for one batch of the delay consumer, and for a run of the dispatcher that finds little to do: a
few calls to AWS. Measure yours; the bill is linear in it."""

DISPATCH_MS: Final = 1
"""What each message adds to a run of the dispatcher: ``docs/capacity.md`` has 0.4 to 0.5 ms of a processor
measured, and tens of sends wait for their answers at once."""

LAMBDA_POLLERS: Final = 5
"""Long polls that Lambda keeps open on an idle queue. Source: Lambda guide, "Configuring scaling
behavior for SQS event source mappings"."""


def hop_requests(load: Workload, hops: int, prices: Prices) -> Line:
    """The delay queue's requests for so many hops: each is sent to it, received, and deleted."""
    return Line(
        what="SQS FIFO requests (send, receive, delete a hop)",
        quantity=hops * (2 * load.billed_requests + load.requests),
        unit_price=prices.sqs_fifo_request,
    )


def hop_lines(load: Workload, hops: int, prices: Prices) -> tuple[Line, ...]:
    """The same, with the delay consumer function that moves them."""
    return (
        hop_requests(load, hops, prices),
        *function_lines("delay consumer", hops * load.requests, prices),
    )


def last_send(load: Workload, prices: Prices) -> Line:
    """What every way ends with."""
    return Line(
        what="SQS standard requests (send to the destination)",
        quantity=load.billed_requests,
        unit_price=prices.sqs_standard_request,
    )


def idle_polling(load: Workload, prices: Prices, *, pollers: int = LAMBDA_POLLERS) -> Line:
    """Long polls of the delay queue, as if it were empty."""
    return Line(
        what=f"SQS FIFO requests (idle long polling, {pollers} pollers)",
        quantity=pollers * (load.delay_seconds // MAX_RECEIVE_WAIT_SECONDS),
        unit_price=prices.sqs_fifo_request,
        fixed=True,
    )


def function_lines(function: str, invocations: int, prices: Prices) -> tuple[Line, ...]:
    """What so many batches cost on Lambda, at the delay consumer's memory and the assumed time."""
    return (
        Line(
            what=f"Lambda requests ({function})",
            quantity=invocations,
            unit_price=prices.lambda_request,
        ),
        Line(
            what=f"Lambda GB-seconds ({function})",
            quantity=invocations * _gb_seconds(DELAY_CONSUMER_MEMORY_MB, FUNCTION_MS),
            unit_price=prices.lambda_arm64_gb_second,
        ),
    )


def dispatcher_line(load: Workload, prices: Prices) -> Line:
    """What the messages add to the dispatcher's runs, which its schedule pays for."""
    return Line(
        what="Lambda GB-seconds (dispatcher)",
        quantity=load.messages * _gb_seconds(DISPATCHER_MEMORY_MB, DISPATCH_MS),
        unit_price=prices.lambda_arm64_gb_second,
    )


def schedule_lines(
    load: Workload,
    prices: Prices,
    *,
    every_seconds: int = SCHEDULE_SECONDS,
    schedule: str = "dispatcher's schedule",
) -> tuple[Line, ...]:
    """The runs of the dispatcher function for the whole delay, as if they found nothing."""
    runs = load.delay_seconds // every_seconds
    return (
        Line(
            what=f"Lambda requests ({schedule})",
            quantity=runs,
            unit_price=prices.lambda_request,
            fixed=True,
        ),
        Line(
            what=f"Lambda GB-seconds ({schedule})",
            quantity=runs * _gb_seconds(DISPATCHER_MEMORY_MB, FUNCTION_MS),
            unit_price=prices.lambda_arm64_gb_second,
            fixed=True,
        ),
    )


def _gb_seconds(memory_mb: int, milliseconds: int) -> Fraction:
    return Fraction(memory_mb, 1024) * Fraction(milliseconds, 1000)
