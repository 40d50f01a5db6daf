"""What hostile input is fed to: each target reads bytes, and raises where a promise is broken.

Nothing but a `SqsDelayError` may come out of sqsdelay, and no message may pass that should be rejected.
The oracles are written without sqsdelay's own regular expressions, on purpose.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from unittest import mock

from pika import BasicProperties

from sqsdelay.cli.send import read_message
from sqsdelay.core.delay import Reject, delay_ms, due_at_ms
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_ATTRIBUTES, MAX_MESSAGE_BYTES
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT, OutgoingMessage, size_of
from sqsdelay.core.readable import parse_delay, parse_due_at
from sqsdelay.core.received_message import from_lambda_event
from sqsdelay.core.rejection import read_rejection, rejected
from sqsdelay.core.stored_message import StoredMessage, from_store
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import MalformedMessage, SqsDelayError
from sqsdelay.ledger.events import from_json, to_json
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.management import Management
from sqsdelay.rabbitmq.message import PROPERTIES, check_encoding, due_of, unpacked
from sqsdelay.rabbitmq.timeouts import read_timeout as read_rabbitmq_timeout
from sqsdelay.rabbitmq.topology import binding_key, check_queue_name, read_key, routing_key
from sqsdelay.relaying import DueRelay, Relay, RelaySettings, Status
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.sizes import read_pointer
from sqsdelay.stores import open_store
from sqsdelay.testing import InMemoryOutbox, InMemoryQueues, InMemoryStore, ManualClock
from sqsdelay.timeouts.sender import read_id, read_timeout

START_MS: Final = 1_800_000_000_000
ENDPOINTS: Final = ("orders", "orders.fifo")
PASSWORD: Final = "S3cretPassw0rd"


class StrictQueues(InMemoryQueues):
    """Queues in memory that refuse what no SQS would take, and so whatever got past sqsdelay's checks."""

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        for entry in entries:
            assert isinstance(entry.body, str)
            assert entry.delay_seconds is None or 0 <= entry.delay_seconds <= 900
            assert entry.size == size_of(entry.body, entry.attributes)
        return super().send_batch(queue_url, entries)


def text_of(data: bytes) -> str:
    """Any text, lone surrogates included, as a command line gives it."""
    return data.decode("utf-8", "surrogateescape")


def value_of(data: bytes) -> Any:
    """Any value JSON can tell; None for what is no JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(text_of(data))
    return None


def record(data: bytes) -> None:
    """A record of a Lambda event, to the delay queue and the due queue of both kinds of endpoint."""
    given = value_of(data)
    try:
        copy = from_lambda_event(given, received_at=1.0)
    except MalformedMessage:
        return
    for name in ENDPOINTS:
        clock = ManualClock(START_MS)
        queues, store = StrictQueues(clock), InMemoryStore(clock)
        endpoint = queues.create_endpoint(name)
        for parking in (None, ParkingSettings(store)):
            relay = Relay(queues, endpoint, RelaySettings(parking=parking))
            (outcome,) = relay.process([copy], delete=False)
            if not _may_be_delivered(given, clock.true_ms):
                assert outcome.status in (Status.REJECTED, Status.FAILED), outcome
        if endpoint.fifo:
            DueRelay(queues, endpoint).process([copy], delete=False)
        Dispatcher(store, InMemoryOutbox(clock), clock=clock).dispatch()
    fitted = len(copy.attributes) <= MAX_ATTRIBUTES and (
        size_of(copy.body, copy.attributes) <= MAX_MESSAGE_BYTES
    )
    if fitted:
        out = rejected(copy, "reason")
        assert out.size <= MAX_MESSAGE_BYTES
        assert len(out.attributes) <= MAX_ATTRIBUTES
    read_rejection(copy)
    timeout = read_timeout(copy)
    assert isinstance(timeout, Reject | StoredMessage)
    read_id(copy.body)
    with suppress(MalformedMessage):
        read_pointer(copy.body, copy.attributes)


def _may_be_delivered(given: Any, now_ms: int) -> bool:
    """What a copy must say at least for its delay to be believed."""
    try:
        attributes = given["messageAttributes"]
        seconds = attributes[DELAY_SECONDS]["stringValue"]
        sent = given["attributes"]["SentTimestamp"]
        due = attributes.get(DUE_AT, {"stringValue": "0"})["stringValue"]
    except (KeyError, TypeError, AttributeError):
        return False
    for text in (seconds, sent, due):
        if not isinstance(text, str) or not text or len(text) > 15 or set(text) - set("0123456789"):
            return False
    if DUE_AT not in attributes:
        return True
    return abs(int(sent) + int(seconds) * 1000 - int(due)) <= 86_400_000


def line(data: bytes) -> None:
    """A line of a file for ``sqsdelay send --file``, sent to both kinds of endpoint."""
    with suppress(SqsDelayError):
        message = read_message(text_of(data), {})
        for name in ENDPOINTS:
            clock = ManualClock(START_MS)
            queues, store = StrictQueues(clock), InMemoryStore(clock)
            queues.create_endpoint(name)
            for sender in (
                QueueSender(queues),
                QueueSender(queues, SenderSettings(parking=ParkingSettings(store, 1000))),
            ):
                (result,) = sender.send_many(name, [message])
                assert (result.error is None) == (
                    result.route is not None and result.due is not None
                )


def stored(data: bytes) -> None:
    """The headers column of a store's row, which somebody may have written by hand."""
    message = from_store("m", "orders", START_MS, b"x", text_of(data), 0)
    clock = ManualClock(START_MS)
    store, outbox = InMemoryStore(clock), InMemoryOutbox(clock)
    store.store([StoredMessage(message_id="m", destination="orders", due_ms=START_MS, body=b"x")])
    store._connection.execute('UPDATE "memory.delayed" SET headers = CAST(? AS TEXT)', [data])
    done = Dispatcher(store, outbox, clock=clock).dispatch()
    assert len(done.rejected) == (message.unreadable is not None)
    if message.unreadable is None:
        again = from_store("m", "orders", START_MS, b"x", message.headers(), 0)
        assert again == message


def store_url(data: bytes) -> None:
    """The URL of a store; no error may show a password, wherever in the URL it stands."""
    url = text_of(data)

    def connect(path: str, **_: Any) -> sqlite3.Connection:
        assert "\0" not in path, "the real one raises a bare ValueError"
        return _connect(":memory:", isolation_level=None)

    with (
        mock.patch("sqlite3.connect", connect),
        # Or a file of its own would be left behind for each path that is tried.
        mock.patch("os.open", side_effect=OSError),
        mock.patch("sqsdelay.stores.calls._client"),
    ):
        for given in (url, f"sqlite:///x.db?table={url}"):
            _without_password(given, _opened)


def _opened(url: str) -> None:
    open_store(url, endpoint="orders").close()


def _without_password(url: str, read: Callable[[str], object]) -> None:
    """Read the URL as it is, and with a password in it, which no error may show."""
    for given in (url, url.replace("PASSWORD", PASSWORD)):
        told = ""
        try:
            read(given)
        except SqsDelayError as error:
            told = f"{error} {error.__cause__}"
        assert PASSWORD not in told


_connect = sqlite3.connect


def rabbitmq(data: bytes) -> None:
    """URLs, routing keys, endpoints and packed properties of RabbitMQ."""
    text = text_of(data)
    _without_password(text, parameters)
    _without_password(text, lambda url: Management(url, "/"))
    read_key(text)
    with suppress(SqsDelayError):
        endpoint = check_queue_name(text)
        said = read_key(routing_key(5, endpoint))
        assert said is not None
        assert (said.delay_seconds, said.endpoint) == (5, endpoint)
        assert len(binding_key(endpoint).encode()) <= 255
    with suppress(SqsDelayError):
        unpacked({PROPERTIES: {"DataType": "Binary", "BinaryValue": data}})


def rabbitmq_message(data: bytes) -> None:
    """Headers and id of a RabbitMQ message that came to be delayed, or waits in a delay level."""
    given = value_of(data)
    if not isinstance(given, dict):
        return
    message_id = given.get("message_id")
    properties = BasicProperties(
        headers=given, message_id=message_id if isinstance(message_id, str) else None
    )
    try:
        check_encoding(properties)
    except SqsDelayError:
        return  # could not have travelled
    assert isinstance(read_rabbitmq_timeout(properties, data), Reject | StoredMessage)
    due_of(read_key("0." * 28 + "orders"), properties, level=3)


def ledger(data: bytes) -> None:
    """A line of a ledger, which anybody may have written into a log."""
    with suppress(SqsDelayError):
        event = from_json(data)
        assert from_json(to_json(event)) == event
        assert from_json(text_of(data)).kind == event.kind


def delay(data: bytes) -> None:
    """A delay or a due time as a person writes it."""
    text = text_of(data)
    with suppress(SqsDelayError):
        delay_ms(parse_delay(text))
    with suppress(SqsDelayError):
        due_at_ms(parse_due_at(text))
    number = value_of(data)
    if isinstance(number, int | float):
        with suppress(SqsDelayError):
            assert delay_ms(number) >= number * 1000 - 1e-3


def endpoint(data: bytes) -> None:
    """An endpoint's name, URL or ARN: what passes has names that SQS takes."""
    with suppress(SqsDelayError):
        parsed = Endpoint.parse(text_of(data))
        for queue in parsed.queues:
            name = queue.name.removesuffix(".fifo")
            assert len(queue.name) <= 80
            assert name.isascii()
            assert name.replace("-", "").replace("_", "").isalnum() or not name.strip("-_")


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target
    for target in (
        record,
        line,
        stored,
        store_url,
        rabbitmq,
        rabbitmq_message,
        ledger,
        delay,
        endpoint,
    )
}
