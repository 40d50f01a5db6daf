"""The wire payloads of a few messages, as other versions and other systems meet them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.ledger import to_json
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.rabbitmq import RabbitMqMessage, Topology
from sqsdelay.rabbitmq.message import checked, delayed
from sqsdelay.rabbitmq.topology import binding_key, entry_level, routing_key
from sqsdelay.relaying import Relay, RelaySettings
from sqsdelay.sending import QueueSender
from sqsdelay.sending.router import SenderSettings
from sqsdelay.testing import InMemoryLedger, InMemoryQueues, InMemoryStore, ManualClock

FOLDER: Final = Path(__file__).parent / "payloads"
DAY_SECONDS: Final = 86_400


class RecordedQueues(InMemoryQueues):
    """Keeps each entry as it was sent."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.sent: list[dict[str, Any]] = []

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        for entry in entries:
            fields = {name: value for name, value in asdict(entry).items() if value is not None}
            self.sent.append({"queue": queue_url, **fields})
        return super().send_batch(queue_url, entries)


def payloads() -> dict[Path, str]:
    """The approved files, and what is in them."""
    texts = {
        "sqs-delayed.json": _shown(sent("orders", delay=DAY_SECONDS)),
        "sqs-timer.json": _shown(sent("orders", delay=90)),
        "sqs-fifo-delayed.json": _shown(
            sent("orders.fifo", delay=DAY_SECONDS, message_group_id="customer-7")
        ),
        "sqs-hop-and-hand-over.json": _shown(hops()),
        "sqs-rejected.json": _shown(rejection()),
        "stored-message.json": _shown(stored()),
        "ledger.jsonl": events(),
        "rabbitmq-delayed.json": _shown(rabbitmq()),
    }
    return {FOLDER / name: text for name, text in texts.items()}


def _shown(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=repr) + "\n"


def _queues(endpoint: str) -> RecordedQueues:
    queues = RecordedQueues(ManualClock())
    queues.create_endpoint(endpoint)
    return queues


def sent(endpoint: str, **arguments: Any) -> list[dict[str, Any]]:
    """What one `QueueSender.send` puts on the wire."""
    queues = _queues(endpoint)
    sender = QueueSender(
        queues, SenderSettings(idempotent=True)
    )  # its deduplication ids are no random numbers
    sender.send(endpoint, "Grüße", message_id="m-1", attributes={"n": 7}, **arguments)
    return queues.sent


def hops() -> list[dict[str, Any]]:
    """A message of 1,000 seconds: into the delay queue, and from there to its destination."""
    queues = _queues("orders")
    QueueSender(queues, SenderSettings(idempotent=True)).send(
        "orders", "hello", message_id="m-1", delay=2_000
    )
    relay = Relay(queues, Endpoint.parse("orders"))
    for _ in range(2):
        queues.clock.advance(900)
        url = queues.url(relay.source)
        relay.process(queues.receive_batch(url, wait_seconds=0))
    return queues.sent


def rejection() -> list[dict[str, Any]]:
    """A copy without a delay, which nobody can relay."""
    queues = _queues("orders")
    endpoint = Endpoint.parse("orders")
    url = queues.url(endpoint.delay_queue)
    queues.send_batch(url, [OutgoingMessage("no delay", {}, 8, None, "g", "m-1")])
    queues.clock.advance(900)
    Relay(queues, endpoint).process(queues.receive_batch(url, wait_seconds=0))
    return queues.sent[1:]


def stored() -> dict[str, Any]:
    """The columns of a store's row."""
    queues = _queues("orders")
    store = InMemoryStore(queues.clock)
    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store, 900)))
    sender.send(
        "orders", "hello", message_id="m-1", delay=DAY_SECONDS, attributes={"n": 7, "b": b"\x00"}
    )
    (message,) = store.pending(1)
    return {
        "message_id": message.message_id,
        "destination": message.destination,
        "due_ms": message.due_ms,
        "body": message.body.decode(),
        "headers": message.headers(),
    }


def events() -> str:
    """The lines of a ledger for a message's whole way."""
    queues, ledger = _queues("orders"), InMemoryLedger()
    QueueSender(queues, SenderSettings(ledger=ledger)).send(
        "orders", "hello", message_id="m-1", delay=2_000
    )
    relay = Relay(queues, Endpoint.parse("orders"), RelaySettings(ledger=ledger))
    for _ in range(2):
        queues.clock.advance(900)
        relay.process(queues.receive_batch(queues.url(relay.source), wait_seconds=0))
    return "".join(f"{to_json(event)}\n" for event in ledger.events)


def rabbitmq() -> dict[str, Any]:
    """Exchange, routing key and properties of a message of 5 seconds, and its queue's binding."""
    message = RabbitMqMessage("hello", headers={"tenant": "acme"}, message_id="m-1")
    _, properties = checked(message, limit=5, user="guest")
    properties = delayed(properties, seconds=5, due_ms=1_800_000_005_000)
    return {
        "exchange": Topology().level_name(entry_level(5)),
        "routing_key": routing_key(5, "orders"),
        "properties": {n: v for n, v in vars(properties).items() if v is not None},
        "binding": {"exchange": Topology().delivery_exchange, "key": binding_key("orders")},
    }
