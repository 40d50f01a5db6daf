"""sqsdelay over RabbitMQ: delays of up to 268,435,455 seconds through the broker's own queues."""

from __future__ import annotations

from importlib.util import find_spec

from sqsdelay.core.readable import Problem
from sqsdelay.errors import MissingExtra

if find_spec("pika") is None:
    raise MissingExtra(
        "RabbitMQ needs pika, which is not installed; run: pip install 'sqsdelay[rabbitmq]'"
    )

from sqsdelay.rabbitmq.administration import Transfer, bind, declare, teardown, transfer
from sqsdelay.rabbitmq.message import RabbitMqMessage
from sqsdelay.rabbitmq.outbox import RabbitMqOutbox
from sqsdelay.rabbitmq.sender import (
    AsyncRabbitMqSender,
    RabbitMqRoute,
    RabbitMqSender,
    RabbitMqSendResult,
)
from sqsdelay.rabbitmq.timeouts import RabbitMqTimeouts, create_timeout_queues
from sqsdelay.rabbitmq.topology import MAX_DELAY_SECONDS, Topology
from sqsdelay.rabbitmq.verification import verify

__all__ = [
    "RabbitMqSender",
    "AsyncRabbitMqSender",
    "MAX_DELAY_SECONDS",
    "RabbitMqMessage",
    "Problem",
    "RabbitMqOutbox",
    "RabbitMqTimeouts",
    "RabbitMqRoute",
    "RabbitMqSendResult",
    "Topology",
    "Transfer",
    "bind",
    "create_timeout_queues",
    "declare",
    "teardown",
    "transfer",
    "verify",
]
