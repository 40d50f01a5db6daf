"""OpenTelemetry: a span at send, at delivery a new trace with a link to it, and metrics of what happened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sqsdelay import unrestricted
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DELAY_SECONDS, Message, string
from sqsdelay.core.outgoing import TraceHeader, handed_over, of_new_trace
from sqsdelay.core.received_message import DelayedMessage
from sqsdelay.errors import QueueMissing
from sqsdelay.opentelemetry import OpenTelemetryLedger, OpenTelemetryTracing
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.relaying import DueRelay
from sqsdelay.sqs.outbox import SqsOutbox
from tests.contract.vectors import Sqs
from tests.messages import a_copy
from tests.patience import ended
from tests.unit import relay_site

THEIRS = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"

TRACE, SPAN = "5759e988bd862e3fe1be46a994272793", "53995c3f42cd8ad8"


class Site(relay_site.Site):
    """An endpoint in memory, whose sender and delay consumer trace and measure."""

    def __init__(self, name: str = "orders") -> None:
        super().__init__(name=name)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = OpenTelemetryTracing(provider)
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = provider.get_tracer("test")
        given: dict[str, Any] = {"tracing": self.tracing}
        given["ledger"] = OpenTelemetryLedger(self.meters, then=self.ledger)
        self.sender = self.new_sender(**given)
        self.relays = [self.new_relay(**given)]
        if self.endpoint.fifo:
            self.relays.append(DueRelay(self.queues, self.endpoint, self.settings(**given)))

    def spans(self, operation: str) -> list[ReadableSpan]:
        return [s for s in self.exporter.get_finished_spans() if s.name.startswith(operation)]

    def pass_time(self, seconds: int) -> None:
        for _ in range(-(-seconds // 300)):
            self.clock.advance(300)
            for relay in self.relays:
                while self.poll(relay):
                    pass


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.meters.shutdown()


def header_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return str(TraceHeader(f"{context.trace_id:032x}", f"{context.span_id:016x}", sampled=True))


def test_months_later_a_new_trace_begins_with_a_link_to_the_send(site: Site) -> None:
    """The send is a child of the caller's span; all copies carry its place; the delivery is a root."""
    with site.tracer.start_as_current_span("checkout") as caller:
        site.sender.send("orders", "x", delay=40 * 86_400, message_id="m")
    (send,) = site.spans("send orders")
    assert send.parent is not None
    assert send.parent.span_id == caller.get_span_context().span_id
    site.pass_time(39 * 86_400)
    (waiting,) = [m.message for m in site.queues._queues["orders-delay.fifo"].messages.values()]
    assert waiting.trace_header == header_of(send)
    site.pass_time(86_400 + 900)
    (deliver,) = site.spans("deliver orders")
    assert deliver.parent is None
    assert deliver.get_span_context().trace_id != send.get_span_context().trace_id  # type: ignore[union-attr]
    assert [link.context.span_id for link in deliver.links] == [send.get_span_context().span_id]  # type: ignore[union-attr]
    assert deliver.attributes is not None
    assert deliver.attributes["messaging.message.id"] == "m"
    (copy,) = site.received("orders")
    assert copy.trace_header == header_of(deliver)
    assert "sqsdelay.MessageId" in copy.attributes
    assert not any("trace" in name.lower() for name in copy.attributes)


def test_a_batch_is_one_send_and_as_many_deliveries(site: Site) -> None:
    """Each message has a trace of its own at delivery; a direct message carries the send's."""
    site.sender.send_many("orders", [Message(f"{n}", delay=1000) for n in range(12)])
    site.sender.send("orders", "direct", delay=5)
    batch, direct = site.spans("send orders")
    site.pass_time(1200)
    deliveries = site.spans("deliver orders")
    traces = {span.get_span_context().trace_id for span in deliveries}  # type: ignore[union-attr]
    assert len(deliveries) == len(traces) == 12
    linked = {link.context.span_id for span in deliveries for link in span.links}
    assert linked == {batch.get_span_context().span_id}  # type: ignore[union-attr]
    copies = [copy for _ in range(2) for copy in site.received("orders")]
    by_body = {copy.body: copy.trace_header for copy in copies}
    assert by_body["direct"] == header_of(direct)
    assert {by_body[str(n)] for n in range(12)} == {header_of(span) for span in deliveries}


def test_a_header_of_the_senders_own_is_kept_and_linked(site: Site) -> None:
    """X-Ray's, from another library."""
    site.sender.send("orders", "x", delay=1000, trace_header=THEIRS)
    site.pass_time(1200)
    (deliver,) = site.spans("deliver orders")
    assert [f"{link.context.span_id:016x}" for link in deliver.links] == ["53995c3f42cd8ad8"]


def test_to_a_fifo_queue_only_the_last_step_is_a_delivery() -> None:
    """The due queue keeps the send's place."""
    site = Site("orders.fifo")
    site.sender.send("orders.fifo", "x", delay=3000, message_group_id="g")
    (send,) = site.spans("send orders.fifo")
    site.pass_time(3300)
    (deliver,) = site.spans("deliver orders.fifo")
    assert [link.context.span_id for link in deliver.links] == [send.get_span_context().span_id]  # type: ignore[union-attr]
    (copy,) = site.received("orders.fifo")
    assert copy.trace_header == header_of(deliver)
    site.meters.shutdown()


def test_parked_and_released_by_the_dispatcher(site: Site) -> None:
    """The store keeps the send's place, and the outbox begins the new trace."""
    sender = site.new_sender(tracing=site.tracing, parking=ParkingSettings(site.store))
    sender.send("orders", "x", delay=30 * 86_400)
    (send,) = site.spans("send orders")
    site.clock.advance(30 * 86_400)
    outbox = SqsOutbox(site.queues, site.endpoint, tracing=site.tracing)
    outbox.send(list(site.store.pending(10)))
    outbox.close()
    site.clock.advance(2)  # the message timer: the broker's clock is known to the second
    (deliver,) = site.spans("deliver orders")
    assert [link.context.span_id for link in deliver.links] == [send.get_span_context().span_id]  # type: ignore[union-attr]
    (copy,) = site.received("orders")
    assert copy.trace_header == header_of(deliver)


def test_it_takes_no_attribute_and_no_byte(site: Site) -> None:
    """Eight attributes of the user's, and a body as large as without tracing."""
    attributes = {f"a{n}": "x" for n in range(8)}
    site.sender.send("orders", "x", delay=1000, attributes=attributes)
    largest = "x" * (1_048_576 - 230)
    plain = site.new_sender().send("orders", largest, delay=1000, message_id="m1")
    traced = site.sender.send("orders", largest, delay=1000, message_id="m2")
    assert plain.route == traced.route


def test_a_send_or_delivery_that_fails_says_so(site: Site) -> None:
    """The error goes to the caller as without tracing; the message stays, and is delivered later."""
    with pytest.raises(QueueMissing):
        site.sender.send("nowhere", "x")
    (send,) = site.spans("send nowhere")
    assert send.status.status_code is StatusCode.ERROR
    site.sender.send("orders", "x", delay=1000)
    site.queues.delete_queue("orders")
    site.pass_time(1200)
    assert {span.status.status_code for span in site.spans("deliver")} <= {StatusCode.ERROR}
    site.queues.create_queue("orders")
    site.pass_time(1200)
    assert site.spans("deliver")[-1].status.status_code is StatusCode.UNSET
    assert len(site.received("orders")) == 1


def test_the_boto3_client_traces_what_it_sends_with_a_long_delay(site: Site) -> None:
    """Single and in a batch."""
    sqs = Sqs(site.clock.true_ms, {"endpoint": "orders"})
    client: Any = unrestricted(sqs.client, tracing=site.tracing)
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
    client.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=86_400)
    (send,) = site.spans("send orders")
    (asked,) = sqs.sends
    header = asked["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"]
    assert header == header_of(send)


def test_metrics_count_what_happened_and_how_late(site: Site) -> None:
    """By kind of event; the other ledger has the events, too."""
    site.sender.send("orders", "x", delay=2000)
    site.pass_time(2100)
    data = site.reader.get_metrics_data()
    assert data is not None
    metrics = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    points: Any = metrics["sqsdelay.messages"].data.data_points
    counts = {p.attributes["sqsdelay.event"]: p.value for p in points}
    assert counts == {"sent": 1, "hop": 1, "handed-over": 1}
    (lateness,) = metrics["sqsdelay.lateness"].data.data_points
    assert lateness.attributes is not None
    assert lateness.attributes["messaging.destination.name"] == "orders"
    assert len(site.ledger.events) == 3


def test_without_an_sdk_nothing_is_sent_along() -> None:
    """The API alone makes spans that are none."""
    site = relay_site.Site()
    site.new_sender(tracing=OpenTelemetryTracing()).send("orders", "x")
    (copy,) = site.received()
    assert copy.trace_header is None


def test_where_it_is_not_installed_nothing_is_imported() -> None:
    """Worker and functions go on without; importing sqsdelay never loads it."""
    program = (
        "import sys, importlib.util as u\n"
        "import sqsdelay.cli.run, sqsdelay.sqs.sender\n"
        "from sqsdelay.opentelemetry import if_installed\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'opentelemetry']\n"
        "u.find_spec = lambda name: None\n"
        "import sqsdelay.opentelemetry as o; o.find_spec = u.find_spec\n"
        "print(if_installed(None), [m for m in sys.modules if m.split('.')[0] == 'opentelemetry'])"
    )
    done = ended([sys.executable, "-c", program], check=True)
    assert done.stdout == "(None, None) []\n"


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (THEIRS, TraceHeader(TRACE, SPAN, True)),
        ("Root=1-5759E988-bd862e3fe1be46a994272793", TraceHeader(TRACE)),
        (f"Self=x; {THEIRS};Lineage=1:a", TraceHeader.read(THEIRS)),
        (THEIRS.replace("Sampled=1", "Sampled=0"), TraceHeader(TRACE, SPAN, False)),
        (THEIRS.replace("Sampled=1", "Sampled=?"), TraceHeader(TRACE, SPAN)),
        (None, None), ("", None), ("Root=1-x", None), (";;=;", None),
    ],
)  # fmt: skip
def test_a_header_is_read_or_passed_over(header: str | None, told: TraceHeader | None) -> None:
    """Whatever stands there."""
    assert TraceHeader.read(header) == told


def test_a_header_is_written_as_it_was_read() -> None:
    """Field for field."""
    assert str(TraceHeader.read(THEIRS)) == THEIRS


@pytest.mark.parametrize("at_ms", [-1, 0, 1_800_000_000_000, 253_402_300_799_000])
def test_a_new_traces_id_is_always_one(at_ms: int) -> None:
    """Also for a due time beyond what eight digits hold."""
    told = TraceHeader.read(of_new_trace("broken", at_ms=at_ms))
    assert told is not None
    assert told.sampled is None
    assert of_new_trace(None, at_ms=at_ms) is None


def test_a_foreign_message_without_a_header_arrives_without_one() -> None:
    """Nothing is made up for who traces nothing."""
    copy = a_copy({DELAY_SECONDS: string("1000")})

    assert (
        handed_over(
            copy, DelayedMessage("m", 0), Endpoint.parse("orders"), delay_seconds=5
        ).trace_header
        is None
    )
