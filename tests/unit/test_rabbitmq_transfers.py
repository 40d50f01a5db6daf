"""When a message found in a level is due."""

from __future__ import annotations

from datetime import UTC, datetime

from pika import BasicProperties

from sqsdelay.rabbitmq.topology import RoutedDelay
from sqsdelay.rabbitmq.transfers import due_of

KEY = RoutedDelay(0b1101, "orders")
SENT = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
SENT_MS = int(SENT.timestamp()) * 1000


def due(level: int, **headers: object) -> int | None:
    return due_of(KEY, BasicProperties(headers=dict(headers)), level=level)


def test_our_own_due_time_comes_first() -> None:
    """It is exact to the millisecond."""
    assert (
        due(3, **{"sqsdelay.WasDueAt": "1700000000123", "x-death": [{"time": SENT}]})
        == 1700000000123
    )


def test_an_nservicebus_message_counts_from_its_time_sent() -> None:
    """Its microseconds are rounded up to a millisecond."""
    headers = {
        "NServiceBus.TimeSent": "2026-11-20 12:00:00:000001 Z",
        "NServiceBus.Transport.RabbitMQ.DelayInSeconds": 13,
    }
    assert due(3, **headers) == SENT_MS + 1 + 13_000


def test_any_other_message_counts_from_its_last_level() -> None:
    """The broker notes whole seconds, cut off: one is added, so that it is never early."""
    deaths = [{"queue": "nsb.v2.delay-level-03", "time": SENT}]
    assert due(2, **{"x-death": deaths}) == SENT_MS + 1000 + 5000


def test_a_message_that_says_nothing_has_no_known_due_time() -> None:
    """Nor one whose headers are no times: it stays where it is rather than be early or late."""
    assert due(3) is None
    assert (
        due(3, **{"sqsdelay.WasDueAt": "soon", "NServiceBus.TimeSent": "today", "x-death": []})
        is None
    )
