"""The delay consumer's work on a batch: decided right, sent before deleted, nothing lost."""

from __future__ import annotations

import json
import logging
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import (
    DELAY_SECONDS,
    DUE_AT,
    ERROR,
    MESSAGE_ID,
    WAS_DUE_AT,
    OutgoingMessage,
    size_of,
    string,
)
from sqsdelay.core.outgoing import TraceHeader
from sqsdelay.errors import QueueUnavailable
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.relaying.outcomes import Status
from sqsdelay.relaying.relay import backoff_seconds
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.faulty import AWAY, REFUSED, FaultyQueues
from tests.unit.relay_site import Site

DELAY, ERRORS = "orders-delay.fifo", "orders-delay-error"


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_seeds_example_of_1925_seconds(site: Site) -> None:
    """Two hops of 900 s and a last 125 s as a message timer, on time."""
    site.put(1925)
    site.clock.advance(900)
    assert site.statuses() == [Status.REQUEUED]
    site.clock.advance(900)
    (outcome,) = site.poll()
    assert (outcome.status, outcome.delay_seconds, outcome.late_ms) == (Status.HANDED_OVER, 125, 0)
    site.clock.advance(124.999)
    assert site.received() == []
    site.clock.advance(0.001)
    (copy,) = site.received()
    assert copy.attributes[MESSAGE_ID] == string("m-1")
    assert site.poll() == []


def test_a_batch_takes_three_requests(site: Site) -> None:
    """Receive, send, delete: for ten messages as for one."""
    for n in range(10):
        site.put(5000, f"m-{n}")
    site.clock.advance(900)
    site.queues.calls.clear()
    assert len(site.poll()) == 10
    assert site.queues.calls == ["receive", "send", "delete"]


def test_a_batch_of_large_copies_is_sent_in_pieces(site: Site) -> None:
    """What one receive returns may be more than one send takes."""
    attributes = {DELAY_SECONDS: string("5000")}
    for n in range(5):
        entry = OutgoingMessage("b" * 600_000, attributes, 600_000, None, f"m-{n}", f"m-{n}")
        site.queues.send_batch(DELAY, [entry])
    site.clock.advance(900)
    site.queues.calls.clear()
    assert site.statuses() == [Status.REQUEUED] * 5
    assert site.queues.calls.count("send") == 5


def test_unreadable_messages_go_to_the_error_queue_and_block_nobody(site: Site) -> None:
    """A poison message is moved at once, with its reason; the others are relayed."""
    site.put("soon", "poison")
    site.put(1000, "good")
    site.clock.advance(900)
    by_id = {o.copy.message_id: o for o in site.poll()}
    assert by_id["poison"].status is Status.REJECTED
    assert by_id["good"].status is Status.HANDED_OVER
    (rejected,) = site.received(ERRORS)
    error = json.loads(rejected.attributes[ERROR]["StringValue"])
    assert "DelaySeconds is 'soon', not a whole number" in error["reason"]
    assert error["messageId"] == "poison"
    assert rejected.attributes[DELAY_SECONDS] == string("soon")
    site.clock.advance(1000)
    assert site.poll() == []


@pytest.mark.parametrize("target", ["orders", DELAY, ERRORS])
def test_a_transient_failure_waits_and_never_becomes_an_error(site: Site, target: str) -> None:
    """Denied access for an hour: the message stays, hidden with backoff, and goes on afterwards."""
    seconds = {"orders": "1000", DELAY: "90000", ERRORS: "soon"}[target]
    site.put(seconds)
    site.queues.failing[target] = AWAY
    due_ms = None if target == ERRORS else site.clock.true_ms + int(seconds) * 1000
    site.clock.advance(900)
    attempts = 0
    while site.clock.true_ms < 1_800_000_000_000 + (900 + 3600) * 1000:
        for outcome in site.poll():
            assert outcome.status is Status.FAILED
            assert (outcome.error, outcome.due_ms) == ("away", due_ms)
            attempts += 1
        site.clock.advance(5)
    assert 15 <= attempts <= 25
    assert site.received(ERRORS) == []
    site.queues.failing.clear()
    site.clock.advance(240)
    (outcome,) = site.poll()
    assert outcome.settled
    assert len(site.received(ERRORS)) == (target == ERRORS)


def test_a_missing_destination_queue_is_waited_for(site: Site) -> None:
    """Deleted by mistake and created again: its messages arrive then; the others' hops go on."""
    site.queues.delete_queue("orders")
    site.put(1000, "waits")
    site.put(9000, "hops")
    site.clock.advance(900)
    assert {o.copy.message_id: o.status for o in site.poll()} == {
        "waits": Status.FAILED,
        "hops": Status.REQUEUED,
    }
    for _ in range(6):
        site.clock.advance(240)
        waits = [o for o in site.poll() if o.copy.message_id == "waits"]
        assert [(o.status, "queue orders does" in str(o.error)) for o in waits] == [
            (Status.FAILED, True)
        ]
    site.queues.create_queue("orders")
    site.clock.advance(240)
    (outcome,) = (o for o in site.poll() if o.copy.message_id == "waits")
    assert outcome.status is Status.HANDED_OVER


def test_what_sqs_keeps_refusing_goes_to_the_error_queue_after_five_receives(site: Site) -> None:
    """A permanent error is given a few chances, then moved with its reason."""
    site.put(1000)
    site.queues.failing["orders"] = REFUSED
    site.clock.advance(900)
    statuses = []
    for _ in range(5):
        (outcome,) = site.poll()
        statuses.append(outcome.status)
        site.clock.advance(240)
    assert statuses == [Status.FAILED] * 4 + [Status.REJECTED]
    (rejected,) = site.received(ERRORS)
    error = json.loads(rejected.attributes[ERROR]["StringValue"])
    assert error["reason"] == "InvalidMessageContents: refused"
    assert error["receiveCount"] == 5


def test_backoff_doubles_and_stays_below_the_deduplication_interval() -> None:
    """A retried copy must still be deduplicated against the first attempt."""
    assert [backoff_seconds(n) for n in (1, 2, 3, 6, 7, 1000)] == [5, 10, 20, 160, 240, 240]


def test_a_copy_sent_on_but_not_deleted_is_not_sent_again(site: Site) -> None:
    """The worker remembers: redelivered, the copy is only deleted."""
    site.put(1000)
    site.clock.advance(900)
    site.queues.deletes_fail = True
    (first,) = site.poll()
    assert (first.status, first.delay_seconds) == (Status.HANDED_OVER, 100)
    site.clock.advance(181)
    site.queues.deletes_fail = False
    (outcome,) = site.poll()
    assert outcome.copy.receive_count == 2
    assert replace(outcome, copy=first.copy) == first
    site.clock.advance(1000)
    assert len(site.received()) == 1
    assert site.poll() == []


def test_a_copy_requeued_twice_is_one_message(site: Site) -> None:
    """Another worker gets the copy again: the same deduplication id makes one message of both."""
    site.put(5000)
    site.clock.advance(900)
    site.queues.deletes_fail = True
    site.poll(site.new_relay())
    site.clock.advance(181)
    site.queues.deletes_fail = False
    site.poll(site.new_relay())
    site.clock.advance(900)
    assert len(site.received(DELAY)) == 1


@pytest.mark.parametrize("error_minutes", [-10, 10])
@pytest.mark.parametrize("redelivered", [False, True])
def test_a_wrong_local_clock_makes_nothing_early_or_late(
    error_minutes: int, redelivered: bool
) -> None:
    """First receive or redelivery, by broker's stamps or learned offset, ±10 minutes do not matter."""
    clock = ManualClock()
    local = ManualClock(clock.true_ms, error_ms=error_minutes * 60_000)
    site = Site(FaultyQueues(clock, local=local))
    site.put(1500)
    for each in (clock, local):
        each.advance(900)
    if redelivered:
        site.received(DELAY)  # another worker that dies with it
        for each in (clock, local):
            each.advance(181)
    (outcome,) = site.poll()
    assert outcome.status is Status.HANDED_OVER
    assert outcome.copy.receive_count == (2 if redelivered else 1)
    assert outcome.late_ms is not None
    assert 0 <= outcome.late_ms < (1000 if redelivered else 1)
    assert site.queues.calls.count("synchronise") == redelivered


def test_time_spent_on_a_batch_counts(site: Site) -> None:
    """The clock is learned from the receive stamp, and what has passed since: slow work is no more delay."""
    site.put(1500)
    site.clock.advance(900)
    copies = site.received(DELAY)
    site.clock.advance(20.5)
    (outcome,) = site.relay.process(copies)
    assert (outcome.delay_seconds, outcome.late_ms) == (580, 500)
    assert site.queues.broker_clock.proven_ms() == site.clock.true_ms


def test_a_stale_receive_stamp_does_not_make_a_message_late(site: Site) -> None:
    """A copy can be underway for a minute after its stamp; fresher answers tell the time better."""
    site.put(1500)
    site.clock.advance(900)
    copies = site.received(DELAY)
    site.clock.advance(60)
    site.queues.synchronise(QueueRef("orders"))
    stale = [replace(copy, received_at=site.clock.monotonic()) for copy in copies]
    (outcome,) = site.relay.process(stale)
    assert (outcome.delay_seconds, outcome.late_ms) == (540, 0)


def test_a_message_overdue_after_an_outage_is_handed_over_at_once(site: Site) -> None:
    """Hours of downtime make messages late, never lost, and their lateness is told."""
    site.put(1000)
    site.clock.advance(10_000)
    (outcome,) = site.poll()
    assert (outcome.delay_seconds, outcome.late_ms) == (0, 9_000_000)
    assert len(site.received()) == 1


def test_a_queue_that_lost_its_delay_is_not_spun() -> None:
    """Without its hop a requeued message would come back at once, for ever, at our cost."""
    site = Site(hop_seconds=0)
    site.put(5000)
    site.clock.advance(1)
    (outcome,) = site.poll()
    assert outcome.status is Status.FAILED
    assert outcome.error == (
        f"{DELAY} held a message for 1000 ms instead of 900 s; set its DelaySeconds back to 900"
    )
    assert site.received(DELAY) == []


def test_a_longer_hop_does_not_strand_what_waited_for_a_shorter_one() -> None:
    """After the hop was raised a copy that came too soon for it goes on once half a hop has passed:
    held back for good it would meet the end of its retention."""
    site = Site(hop_seconds=60)
    site.put(5000)
    site.clock.advance(60)
    assert site.statuses() == [Status.FAILED]
    site.clock.advance(390)
    assert site.statuses() == [Status.REQUEUED]


def test_lambda_deletes_for_itself(site: Site) -> None:
    """With delete=False settled copies are left to the caller, failed ones are still hidden."""
    site.put(1000)
    site.clock.advance(900)
    site.queues.calls.clear()
    site.relay.process(site.received(DELAY), delete=False)
    assert site.queues.calls == ["receive", "send"]


def test_trace_header_and_fair_queue_group_reach_the_destination(site: Site) -> None:
    """What the sender gave beside the body survives every hop; the delivery begins a trace of its own."""
    site.sender.send(
        "orders",
        "x",
        delay=2000,
        message_group_id="tenant-7",
        trace_header="Root=1-67891233-abcdef012345678912345678;Parent=53995c3f42cd8ad8;Sampled=1",
    )
    for _ in range(2):
        site.clock.advance(900)
        site.poll()
    site.clock.advance(200)
    (copy,) = site.received()
    assert copy.group_id == "tenant-7"
    told = TraceHeader.read(copy.trace_header)
    assert told is not None
    assert (told.span_id, told.sampled) == (None, True)
    # X-Ray reads the time of a trace in its id: this one's is the due time.
    assert int(told.trace_id[:8], 16) == int(copy.attributes[WAS_DUE_AT]["StringValue"]) // 1000


def test_what_the_error_queue_refuses_too_stays(site: Site) -> None:
    """It has no error queue of its own to go to: it fails and waits, and does not go round for ever."""
    site.put(1000)
    site.queues.failing["orders"] = site.queues.failing[ERRORS] = REFUSED
    site.clock.advance(900)
    for _ in range(6):
        (outcome,) = site.poll()
        assert (outcome.status, outcome.error) == (Status.FAILED, "refused")
        site.clock.advance(240)
    site.queues.failing.clear()
    assert site.poll()[0].status is Status.HANDED_OVER


def test_what_is_remembered_of_undeleted_copies_is_bounded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is forgotten first, and sent again; that is a duplicate, and no leak."""
    monkeypatch.setattr("sqsdelay.relaying.relay._REMEMBERED_COPIES", 2)
    for n in range(3):
        site.put(1000, f"m-{n}")
    site.clock.advance(900)
    site.queues.deletes_fail = True
    assert len(site.poll()) == 3
    assert len(site.relay._undeleted) == 2
    site.clock.advance(181)
    site.queues.deletes_fail = False
    assert len(site.poll()) == 3
    assert site.relay._undeleted == {}
    site.clock.advance(1000)
    assert sorted(c.message_id for c in site.received()) == ["m-0", "m-0", "m-1", "m-2"]


def test_memory_is_flat_whatever_cannot_be_deleted(site: Site) -> None:
    """Of a copy sent on and not deleted its fate is remembered, and not its megabyte."""
    site.queues.deletes_fail = True
    site.put(1000)
    site.clock.advance(900)
    (copy,) = site.received(DELAY)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(60):
            large = replace(copy, body="b" * 1_000_000, sqs_message_id=f"sqs-{n}")
            site.queues.failing["orders"] = AWAY
            site.relay.process([large])  # nothing is kept of what fails, either
            site.queues.failing.clear()
            assert site.relay.process([large])[0].status is Status.HANDED_OVER
            site.queues._queues["orders"].messages.clear()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(site.relay._undeleted) == 60
    assert after - before < 2_500_000


@pytest.mark.parametrize(
    ("seconds", "timers", "late_ms"),
    [
        (1, [100, 99, 98, 97, 96, 95], [0] * 6),
        (30, [100, 70, 40, 10, 0, 0], [0] * 4 + [20_000, 50_000]),
    ],
)
def test_timers_are_worked_out_right_before_each_send(
    seconds: int, timers: list[int], late_ms: list[int]
) -> None:
    """Six copies of 1 MB at so many seconds a send: what earlier sends take beyond the timer is late."""

    class Slow(FaultyQueues):
        def send_batch(
            self, queue_url: str, entries: Sequence[OutgoingMessage]
        ) -> list[SendReceipt | Failure]:
            receipts = super().send_batch(queue_url, entries)
            self.clock.advance(seconds)
            return receipts

    site = Site(slow := Slow(ManualClock()))
    due_ms = site.clock.true_ms + 1_000_000
    for n in range(6):
        attributes = {DELAY_SECONDS: string("1000"), DUE_AT: string(f"{due_ms}")}
        entry = OutgoingMessage("b" * 900_000, attributes, 900_000, None, f"m-{n}", f"m-{n}")
        assert isinstance(InMemoryQueues.send_batch(slow, DELAY, [entry])[0], SendReceipt)
    site.clock.advance(900)
    outcomes = site.poll()
    assert [o.delay_seconds for o in outcomes] == timers
    assert [o.late_ms for o in outcomes] == late_ms
    visible = [m.visible_ms for m in slow._queues["orders"].messages.values()]
    assert visible == [due_ms + each for each in late_ms]


def test_what_is_no_longer_held_is_neither_sent_nor_hidden(site: Site) -> None:
    """Its time is up: another consumer may have it, who would get a duplicate, or lose its hold."""
    site.put(1000)
    site.clock.advance(900)
    copies = site.received(DELAY)
    site.queues.calls.clear()
    (outcome,) = site.relay.process(copies, held=lambda: False)
    assert (outcome.status, site.queues.calls) == (Status.FAILED, [])
    assert "no time is left" in str(outcome.error)


def test_what_time_is_left_for_is_sent_and_the_rest_fails(site: Site) -> None:
    """Each copy has an outcome, and says when it is due."""
    start_ms = site.clock.true_ms
    for name, seconds in (("hops", 5000), ("soon", 1000), ("poison", "soon")):
        site.put(seconds, name)
    site.clock.advance(900)
    copies = site.received(DELAY)
    times = iter([True])
    outcomes = site.relay.process(copies, held=lambda: next(times, False))
    told = {o.copy.message_id: (o.status, o.due_ms) for o in outcomes}
    assert told == {
        "hops": (Status.REQUEUED, start_ms + 5_000_000),
        "soon": (Status.FAILED, start_ms + 1_000_000),
        "poison": (Status.FAILED, None),
    }


def test_a_timer_stays_as_it_was_where_the_time_is_not_known_any_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided is sent: late by what passed since, and not early."""
    site.put(1000)
    site.clock.advance(900)
    decided = iter([site.clock.true_ms])

    def broker_now() -> int:
        now_ms = next(decided, None)
        if now_ms is None:
            raise QueueUnavailable("gone")
        return now_ms

    monkeypatch.setattr(site.relay, "_broker_now", broker_now)
    (outcome,) = site.poll()
    assert (outcome.status, outcome.delay_seconds, outcome.late_ms) == (Status.HANDED_OVER, 100, 0)


def test_an_event_tells_the_size_of_what_was_sent(site: Site) -> None:
    """With the attributes that it was sent with: what SQS bills."""
    site.put(1000)
    site.clock.advance(900)
    site.poll()
    site.clock.advance(100)
    (copy,) = site.received()
    assert [event.size for event in site.told()] == [size_of(copy.body, copy.attributes)]


def test_what_a_store_does_not_take_hops_on_and_says_why(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is named, on one line."""
    site.store.down = {"store"}
    site.put(100000)
    site.clock.advance(900)
    (outcome,) = site.poll(site.new_relay(ParkingSettings(site.store)))
    assert outcome.status is Status.REQUEUED
    (line,) = caplog.messages
    assert re.fullmatch(
        rf"{outcome.copy.message_id} not parked, it hops on: store: the store is down", line
    )


@pytest.mark.parametrize(
    ("message_id", "shown"),
    [("m-1", "m-1"), ("m\r\nWARNING all\x1b[2J\u2028", "m\\x0d\\x0aWARNING all\\x1b[2J\\u2028")],
    ids=["plain", "forged"],
)
def test_each_line_of_the_log_names_the_message_and_the_cause(
    site: Site, caplog: pytest.LogCaptureFixture, message_id: str, shown: str
) -> None:
    """One that stays, whose backoff is not set either, and one whose delete fails. Ids are whoever's who may
    send: escapes and line ends are shown, and not obeyed."""
    entry = OutgoingMessage("x", {DELAY_SECONDS: string("1000")}, 99, None, message_id, "")
    site.queues.send_batch(DELAY, [entry])
    site.clock.advance(900)
    site.queues.failing["orders"] = AWAY
    site.queues.hides_fail = site.queues.deletes_fail = True
    with caplog.at_level(logging.INFO, "sqsdelay.relaying"):
        site.poll()
        site.queues.failing.clear()
        site.clock.advance(300)
        site.poll()
    assert caplog.messages == [
        f"message {shown} stays in orders-delay.fifo: away",
        f"backoff of {shown} not set: away",
        f"message {shown} sent on but not deleted: away",
    ]
