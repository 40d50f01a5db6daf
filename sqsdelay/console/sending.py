"""Sending a message: where it would go and what that costs, then for real; and what many would cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from sqsdelay.console.messages import typed_due
from sqsdelay.console.services import Outcome, Result, Work
from sqsdelay.console.source import Source
from sqsdelay.core.checked_message import attributes_of_texts, new_message_id
from sqsdelay.core.delay import due_at_ms, due_time, parse_delay, seconds_until, too_far
from sqsdelay.core.message import Message, Route, attributes_of, size_of
from sqsdelay.core.readable import one_line
from sqsdelay.cost import Workload, bill, dollars, recommend, shipped_prices
from sqsdelay.cost.strategies import OF_STORE
from sqsdelay.errors import ConfigurationError, InvalidDelay, InvalidMessage, SqsDelayError
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS

CONNECT_SECONDS: Final = 5.0
FIELDS: Final = ("body", "delay", "due_at", "id", "group", "attributes")
"""What the form has; attributes are lines of ``NAME=VALUE``."""
_COUNTED: Final = {"dynamodb": "DynamoDB", "s3": "S3", "scheduler": "EventBridge Scheduler"}
"""What a kind of store that is paid for by the message is called."""


def message_of(source: Source, given: Mapping[str, str]) -> Message:
    """The message that a form describes; raises what is wrong with it."""
    if not given["body"]:
        raise ConfigurationError("the body is empty; SQS requires at least 1 character")
    delay, due_at = typed_due(given["delay"], given["due_at"])
    lines = [line.strip() for line in given["attributes"].splitlines() if line.strip()]
    attributes = attributes_of_texts(lines)
    group = given["group"].strip() or None
    binary = any(isinstance(each, dict) and "BinaryValue" in each for each in attributes.values())
    if not source.on_sqs and (group or binary):
        raise InvalidMessage("the console cannot send message groups or binary headers to RabbitMQ")
    message_id = given["id"].strip() or None
    return Message(given["body"], delay, due_at, attributes, message_id, group)


def preview(source: Source, message: Message) -> dict[str, Any]:
    """Where a message would go, when it would arrive, and what that costs, without fixed costs.

    Nothing is sent, and what `QueueSender.send` would refuse is raised.
    """
    size = size_of(message.body, attributes_of(message.attributes))
    if not source.on_sqs:
        now_ms = source.latest_ms()
        due_ms = due_time(message.delay, message.due_at).due_ms(now_ms)
        problem = too_far(due_ms, now_ms, source.settings.max_delay_seconds)
        if problem is not None:
            raise InvalidDelay(problem)
        route = "delay-level" if due_ms > now_ms else "direct"
        return {"route": route, "due_ms": due_ms, "bytes": size, "cost_of": "only your broker"}
    sender = source.sender()
    found = source.of_sqs(lambda: sender.preview(source.endpoint.address, message))
    assert found.route is not None
    assert found.due is not None
    due_ms = due_at_ms(found.due)
    seconds = seconds_until(due_ms, source.latest_ms())
    kind = (source.store_url or "").partition(":")[0]
    strategy, cost_of = "relay", "SQS requests and Lambda"
    if seconds > MAX_MESSAGE_TIMER_SECONDS and found.route is not Route.DELAY_QUEUE:
        if kind in OF_STORE:
            strategy, cost_of = OF_STORE[kind], f"SQS, {_COUNTED[kind]} and Lambda"
        else:
            seconds, cost_of = 0, f"the send to its destination; the {kind or 'its'} store is extra"
    load = Workload(
        delay_seconds=seconds, message_bytes=max(1, size), hop_seconds=source.settings.hop_seconds
    )
    paid = bill(strategy, load, prices())
    return {
        "route": found.route,
        "due_ms": due_ms,
        "bytes": size,
        "hops": found.route is Route.DELAY_QUEUE and load.hops,
        "cost": None if paid.impossible else dollars(paid.for_messages),
        "cost_of": cost_of,
    }


prices = cache(shipped_prices)


def sent(source: Source, message: Message) -> Work:
    """Send a message; raises why it cannot be one."""
    # Named now, by when it is due, so that every store finds it by its id.
    due_ms = due_time(message.delay, message.due_at).due_ms(source.latest_ms())
    given: dict[str, Any] = {
        "delay": message.delay,
        "due_at": message.due_at,
        "message_id": message.message_id or new_message_id(due_ms),
    }

    def run() -> Work:
        result: Any
        if source.on_sqs:
            result = source.sender().send(
                source.endpoint.address,
                message.body,
                attributes=message.attributes,
                message_group_id=message.message_group_id,
                **given,
            )
        else:
            from sqsdelay.rabbitmq import RabbitMqSender
            from sqsdelay.rabbitmq.topology import OWN_PREFIX

            url, prefix = source.settings.rabbitmq or "", source.settings.prefix or OWN_PREFIX
            with RabbitMqSender(url, prefix=prefix, connect_seconds=CONNECT_SECONDS) as sender:
                headers = {
                    name: str(value["StringValue"] if isinstance(value, dict) else value)
                    for name, value in message.attributes.items()
                }
                result = sender.send(source.name, message.body, headers=headers, **given)
        due = result.due and f", due {result.due.isoformat(timespec='milliseconds')}"
        yield Outcome(given["message_id"], Result.DONE, f"sent ({result.route}){due or ''}")

    return run()


START: Final = {"delay": "30d", "messages": "1000000", "size": "1024", "batch": "1"}
"""What the Cost page begins with."""


def advised(query: Mapping[str, str]) -> dict[str, Any]:
    """What the Cost page shows for what was typed: a recommendation, or why there is none."""
    given = {name: query.get(name, value) for name, value in START.items()}
    shown: dict[str, Any] = {"advice": None, "load": None, "trouble": None}
    try:
        shown["load"] = Workload(
            delay_seconds=round(parse_delay(given["delay"]).total_seconds()),
            messages=_whole("messages", given["messages"]),
            message_bytes=_whole("size", given["size"]),
            batch=_whole("batch", given["batch"]),
        )
        shown["advice"] = recommend(shown["load"], prices())
        if not shown["advice"]:
            shown["trouble"] = bill("relay", shown["load"], prices()).impossible
    except SqsDelayError as error:
        shown["trouble"] = one_line(error)
    return shown | {"given": given, "prices": prices()}


def _whole(name: str, text: str) -> int:
    digits = re.sub(r"[\s,_]", "", text)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise ConfigurationError(f"{name} is {text!r}; give a whole number")
    return int(digits)
