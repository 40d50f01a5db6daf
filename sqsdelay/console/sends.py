"""Sending a message from the console: where it would go and what that costs, then for real."""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import StrEnum
from typing import Final

from sqsdelay.console.costs import price_of_one
from sqsdelay.console.jobs import Outcome, Result
from sqsdelay.console.overview import Broker
from sqsdelay.console.rendering import text_of
from sqsdelay.console.schemas import SendPreview, SendRequest
from sqsdelay.console.source import Source
from sqsdelay.core.checked_message import attributes_of_texts, new_message_id
from sqsdelay.core.delay import (
    due_at_ms,
    due_time,
    parse_delay,
    parse_due_at,
    seconds_until,
    too_far,
)
from sqsdelay.core.message import Message, Route, attributes_of, size_of
from sqsdelay.core.readable import instant
from sqsdelay.cost import Workload
from sqsdelay.errors import InvalidDelay, InvalidMessage
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS

_WAYS: Final = {
    Route.DIRECT: "straight to {endpoint}, where a message timer holds it until it is due",
    Route.DUE_QUEUE: "to the due queue of {endpoint}, where a message timer holds it until it is due",
    Route.DELAY_QUEUE: "to the delay queue of {endpoint}; the delay consumer moves it from hop to hop and "
    "hands it over",
    Route.STORE: "into the store of {endpoint}; the dispatcher releases it when it is due",
}


class Sends:
    """Previews and sends messages.

    Args:
        broker: the RabbitMQ to send through; None is SQS.
    """

    def __init__(self, broker: Broker | None) -> None:
        self._broker = broker

    def preview(self, source: Source, request: SendRequest) -> SendPreview:
        """Where a message would go; nothing is sent, and all is checked that can be.

        Raises:
            SqsDelayError: what `QueueSender.send` would refuse, and why.
        """
        message = _message(source, request)
        size = size_of(message.body, attributes_of(message.attributes))
        if self._broker is not None:
            return self._through_rabbitmq(source, message, size)
        sender = source.sender()
        found = source.of_sqs(lambda: sender.preview(source.endpoint.address, message))
        assert found.route is not None
        assert found.due is not None
        due_ms = due_at_ms(found.due)
        seconds = seconds_until(due_ms, source.latest_ms())
        hops = 0
        if found.route is Route.DELAY_QUEUE:
            load = Workload(delay_seconds=seconds, hop_seconds=source.settings.hop_seconds)
            hops = load.hops
        cost, cost_of = _cost(source, found.route, seconds, size)
        return SendPreview(
            endpoint=source.name,
            route=found.route,
            way=_WAYS[found.route].format(endpoint=source.name),
            due=instant(due_ms),
            seconds=seconds,
            hops=hops,
            bytes=size,
            cost=cost,
            cost_of=cost_of,
            id=None if found.message_id is None else text_of(found.message_id),
        )

    def _through_rabbitmq(self, source: Source, message: Message, size: int) -> SendPreview:
        now_ms = source.latest_ms()
        due_ms = due_time(message.delay, message.due_at).due_ms(now_ms)
        seconds = seconds_until(due_ms, now_ms)
        problem = too_far(due_ms, now_ms, source.settings.max_delay_seconds)
        if problem is not None:
            raise InvalidDelay(problem)
        level = "through the broker's delay levels to" if seconds else "straight to"
        return SendPreview(
            endpoint=source.name,
            route="delay-level" if seconds else "direct",
            way=f"{level} queue {source.name}",
            due=instant(due_ms),
            seconds=seconds,
            hops=0,
            bytes=size,
            cost=None,
            cost_of="only your broker",
            id=message.message_id,
        )

    def send(self, source: Source, request: SendRequest) -> Callable[[], Generator[Outcome]]:
        """Send a message.

        Raises:
            InvalidMessage, InvalidDelay: it cannot be one.
        """
        message = _message(source, request)
        # Named now: who asks twice with one key gets one message, and knows its id. It tells when the
        # message is due, so that every store finds it by its id.
        message_id = message.message_id or _new_id(message, source.latest_ms())

        def run() -> Generator[Outcome]:
            route: StrEnum | None
            if self._broker is not None:
                answer = self._broker.send(
                    source.name,
                    message.body,
                    delay=message.delay,
                    due_at=message.due_at,
                    headers={name: _text(value) for name, value in message.attributes.items()},
                    message_id=message_id,
                )
                route, due = answer.route, answer.due
            else:
                result = source.sender().send(
                    source.endpoint.address,
                    message.body,
                    delay=message.delay,
                    due_at=message.due_at,
                    attributes=message.attributes,
                    message_id=message_id,
                    message_group_id=message.message_group_id,
                )
                route, due = result.route, result.due
            when = "" if due is None else f", due {due.isoformat(timespec='milliseconds')}"
            yield Outcome(message_id=message_id, result=Result.DONE, text=f"sent ({route}){when}")

        return run


def _message(source: Source, request: SendRequest) -> Message:
    if request.delay and request.due_at:
        raise InvalidDelay("delay and due_at are both given; give only one")
    attributes = attributes_of_texts(request.attributes)
    if not source.on_sqs and (
        request.group
        or any(isinstance(value, dict) and "BinaryValue" in value for value in attributes.values())
    ):
        raise InvalidMessage("the console cannot send message groups or binary headers to RabbitMQ")
    return Message(
        request.body,
        delay=parse_delay(request.delay) if request.delay else None,
        due_at=parse_due_at(request.due_at) if request.due_at else None,
        message_id=request.id or None,
        message_group_id=request.group or None,
        attributes=attributes,
    )


def _new_id(message: Message, now_ms: int) -> str:
    if message.delay is None and message.due_at is None:
        return new_message_id(now_ms)
    return new_message_id(due_time(message.delay, message.due_at).due_ms(now_ms))


def _cost(source: Source, route: Route, seconds: int, size: int) -> tuple[str | None, str]:
    """What the message costs by itself, and what that counts."""
    if seconds <= MAX_MESSAGE_TIMER_SECONDS or route is Route.DELAY_QUEUE:
        return price_of_one("relay", seconds=seconds, size=size), "SQS requests and Lambda"
    url = source.store_url or ""
    if url.startswith("dynamodb:"):
        return price_of_one("stored", seconds=seconds, size=size), "SQS, DynamoDB and Lambda"
    if url.startswith("s3:"):
        return price_of_one("stored-in-s3", seconds=seconds, size=size), "SQS, S3 and Lambda"
    if url.startswith("scheduler:"):
        cost = price_of_one("scheduled-by-sender", seconds=seconds, size=size)
        return cost, "SQS, EventBridge Scheduler and Lambda"
    direct = price_of_one("relay", seconds=0, size=size)
    kind = url.partition(":")[0] or "its"
    return direct, f"the send to its destination; the {kind} store is extra"


def _text(value: object) -> str:
    return str(value["StringValue"]) if isinstance(value, dict) else str(value)
