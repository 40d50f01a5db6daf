"""What became of messages, as metrics: a ledger that counts its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics

from sqsdelay.ledger.events import Event, Ledger, record_safely

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

MESSAGES: Final = "sqsdelay.messages"
LATENESS: Final = "sqsdelay.lateness"


class OpenTelemetryLedger:
    """A ledger for sender, delay consumer, dispatcher and receiver. Thread-safe.

    ``sqsdelay.messages`` counts the events by ``sqsdelay.event``: sent, hop, parked, released, handed-over,
    rejected, received, cancelled, rescheduled. ``sqsdelay.lateness`` is a histogram in seconds of the
    events that tell it. Both have ``messaging.system`` and ``messaging.destination.name``.

    Args:
        meter_provider: the global one if left out.
        then: another ledger, which gets the events as well.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, then: Ledger | None = None
    ) -> None:
        meter = metrics.get_meter("sqsdelay", meter_provider=meter_provider)
        self._messages = meter.create_counter(
            MESSAGES, unit="{message}", description="Events of messages with a delay"
        )
        self._lateness = meter.create_histogram(
            LATENESS, unit="s", description="How long after its due time a message arrived"
        )
        self._then = then

    def record(self, events: Sequence[Event]) -> None:
        for event in events:
            told = {
                "messaging.system": "aws_sqs",
                "messaging.destination.name": event.endpoint,
                "sqsdelay.event": event.kind.value,
            }
            self._messages.add(1, told)
            if event.late_ms is not None:
                self._lateness.record(event.late_ms / 1000, told)
        if self._then is not None:
            record_safely(self._then, events)
