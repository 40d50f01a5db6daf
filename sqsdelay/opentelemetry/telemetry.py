"""OpenTelemetry: spans of sends and deliveries, and what became of messages as metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags

from sqsdelay.core.outgoing import TraceHeader
from sqsdelay.ledger.events import Event, Ledger, record_safely

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


MESSAGES: Final = "sqsdelay.messages"
LATENESS: Final = "sqsdelay.lateness"


class OpenTelemetryLedger:
    """A ledger for sender, delay consumer, dispatcher and receiver. Thread-safe.

    ``sqsdelay.messages`` counts the events by ``sqsdelay.event``: sent, hop, forwarded, parked, released,
    handed-over, rejected, received, cancelled, rescheduled. ``sqsdelay.lateness`` is a histogram in seconds
    of the events that tell it. Both have ``messaging.system`` and ``messaging.destination.name``.

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


class OpenTelemetryTracing:
    """A span around each send, and at delivery a new trace with a link to it. Thread-safe.

    Args:
        tracer_provider: the global one if left out.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("sqsdelay", tracer_provider=tracer_provider)

    @contextmanager
    def sending(self, endpoint: str) -> Iterator[str | None]:
        """See `sqsdelay.ports.queues.Tracing`."""
        with self._tracer.start_as_current_span(
            f"send {endpoint}", kind=SpanKind.PRODUCER, attributes=_attributes("send", endpoint)
        ) as span:
            yield _header(span)

    def delivering(
        self, endpoint: str, message_id: str, *, sent_with: str | None, due_ms: int | None
    ) -> SpanOfDelivery:
        """See `sqsdelay.ports.queues.Tracing`."""
        sender = _context(sent_with)
        attributes = _attributes("deliver", endpoint) | {"messaging.message.id": message_id}
        if due_ms is not None:
            attributes["sqsdelay.due_ms"] = due_ms
        span = self._tracer.start_span(
            f"deliver {endpoint}",
            context=Context(),  # none: not the trace of the process that happens to deliver
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=[] if sender is None else [Link(sender)],
        )
        return SpanOfDelivery(span)


class SpanOfDelivery:
    """A `sqsdelay.ports.queues.DeliverySpan`."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.header = _header(span)

    def end(self, error: str | None = None) -> None:
        if error is not None:
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


def _attributes(operation: str, endpoint: str) -> dict[str, str | int]:
    """Source: OpenTelemetry's semantic conventions for messaging spans."""
    return {
        "messaging.system": "aws_sqs",
        "messaging.destination.name": endpoint,
        "messaging.operation.name": operation,
        "messaging.operation.type": "send",
    }


def _header(span: Span) -> str | None:
    """The trace header of what happens within a span; None where no SDK made it."""
    context = span.get_span_context()
    trace_id, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    header = TraceHeader(trace_id, span_id, context.trace_flags.sampled)
    return str(header) if context.is_valid else None


def _context(header: str | None) -> SpanContext | None:
    """The span that a header names; None where it names none."""
    told = TraceHeader.read(header)
    if told is None or told.span_id is None:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED if told.sampled else TraceFlags.DEFAULT)
    ids = int(told.trace_id, 16), int(told.span_id, 16)
    context = SpanContext(*ids, is_remote=True, trace_flags=flags)
    return context if context.is_valid else None
