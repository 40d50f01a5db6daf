"""sqsdelay over RabbitMQ: delays of up to 268,435,455 seconds through the broker's own queues."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sqsdelay.errors import MissingExtra

if find_spec("pika") is None:
    raise MissingExtra(
        "RabbitMQ needs pika, which is not installed; run: pip install 'sqsdelay[rabbitmq]'"
    )

if TYPE_CHECKING:
    from sqsdelay.rabbitmq.infrastructure import bind, declare, teardown
    from sqsdelay.rabbitmq.message import Message
    from sqsdelay.rabbitmq.outbox import RabbitMqOutbox
    from sqsdelay.rabbitmq.sender import DelaySender, Route, SendResult
    from sqsdelay.rabbitmq.timeouts import RabbitMqTimeouts, create_timeout_queues
    from sqsdelay.rabbitmq.topology import MAX_DELAY_SECONDS, Topology
    from sqsdelay.rabbitmq.transfers import Transfer, transfer
    from sqsdelay.rabbitmq.verification import Problem, verify

__all__ = [
    "DelaySender",
    "MAX_DELAY_SECONDS",
    "Message",
    "Problem",
    "RabbitMqOutbox",
    "RabbitMqTimeouts",
    "Route",
    "SendResult",
    "Topology",
    "Transfer",
    "bind",
    "create_timeout_queues",
    "declare",
    "teardown",
    "transfer",
    "verify",
]

_HOMES = {
    "DelaySender": "sender",
    "MAX_DELAY_SECONDS": "topology",
    "Message": "message",
    "Problem": "verification",
    "RabbitMqOutbox": "outbox",
    "RabbitMqTimeouts": "timeouts",
    "Route": "sender",
    "SendResult": "sender",
    "Topology": "topology",
    "Transfer": "transfers",
    "bind": "infrastructure",
    "create_timeout_queues": "timeouts",
    "declare": "infrastructure",
    "teardown": "infrastructure",
    "transfer": "transfers",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    """Load on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
