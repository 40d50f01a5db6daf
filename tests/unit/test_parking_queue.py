"""What is to be parked gathers in the parking queue; nothing is deleted before its next home has it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import Mock, patch

import pytest

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import (
    DEDUPLICATION_ID,
    DELAY_SECONDS,
    ERROR,
    GROUP_ID,
    Attribute,
    OutgoingMessage,
    string,
    text_of,
)
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import Amendment
from sqsdelay.errors import (
    ConfigurationError,
    QueueUnavailable,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from sqsdelay.ledger.events import EventKind, Source
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS
from sqsdelay.ports.queues import Failure
from sqsdelay.relaying.gathering import (
    GROUP_BYTES,
    ForwardingRelay,
    Parker,
    forwards,
    group_of,
    packed,
    unpacked,
)
from sqsdelay.relaying.outcomes import Outcome, RelaySettings, Status
from sqsdelay.relaying.relay import Held, Relay
from sqsdelay.testing import InMemoryStore, ManualClock
from tests.faulty import AWAY, REFUSED
from tests.messages import a_copy
from tests.unit import relay_site
from tests.unit.relay_site import DAY

DELAY, PARKING, ERRORS = "orders-delay.fifo", "orders-parking", "orders-delay-error"


class GroupStore(InMemoryStore):
    """Takes groups, counts its calls, and may be out of reach."""

    stored_at_once = 50

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.calls = 0
        self.out_of_reach = False
        self.meanwhile: Callable[[], object] = bool

    def store(self, *arguments: Any, **named: Any) -> list[bool]:
        if self.out_of_reach:
            raise StoreUnavailable("out of reach")
        self.calls += 1
        self.meanwhile()
        return super().store(*arguments, **named)


class Site(relay_site.Site):
    """A delay consumer function, its parking queue, and who empties that."""

    def __init__(self, name: str = "orders") -> None:
        super().__init__(name=name, store=GroupStore, park_after=DEFAULT_PARK_AFTER_SECONDS)
        self.queues.create_queue(PARKING)
        given = self.settings(parking=self.parking)
        self.relay: ForwardingRelay = ForwardingRelay(self.queues, self.endpoint, given)
        self.parker = Parker(self.queues, self.endpoint, replace(given, hop_seconds=60))

    def relayed(self) -> list[Status]:
        """One hop on, the delay consumer's turn: ten copies at a time."""
        self.clock.advance(900)
        fates: list[Status] = []
        while found := self.statuses():
            fates += found
        return fates

    def forward_two(self, seconds: int = 1000) -> None:
        """One to be parked, and one that was moved so near that it is to be handed over."""
        self.put(90 * DAY, "parks")
        self.put(90 * DAY, "soon")
        now_ms = self.clock.now_ms() + 1
        due_ms = now_ms + seconds * 1000
        self.store.amend([Amendment(message_id="soon", at_ms=now_ms, due_ms=due_ms)])
        self.relayed()

    def parked(self) -> list[Outcome]:
        """The dispatcher's turn."""
        return settled(self.parker)


def forward(site: Site, copies: Sequence[ReceivedMessage]) -> list[Failure | None]:
    """Send copies to the parking queue; an answer for each message there."""
    moves = forwards(site.endpoint, [Outcome(copy, Status.FORWARDED) for copy in copies])
    return site.relay._send(moves)


def settled(
    parker: Parker, *, more: Held = lambda: True, held: Held = lambda: True
) -> list[Outcome]:
    """The outcomes of all rounds."""
    return [outcome for each in parker.rounds(more=more, held=held) for outcome in each]


@pytest.fixture
def site() -> Site:
    return Site()


def test_ten_copies_are_one_message_and_all_are_parked_in_one_call(site: Site) -> None:
    """Whatever they are, their ids and due times included; the queues are empty afterwards."""
    binary: dict[str, Attribute] = {"Trace": {"DataType": "Binary.raw", "BinaryValue": b"\x00\xff"}}
    for n in range(40):
        delay = {DELAY_SECONDS: string(str(90 * DAY + n))}
        site.put({**delay, **binary}, f"m{n}", f'"{n} ü\u2028')
    assert site.relayed() == [Status.FORWARDED] * 40
    assert len(site.left(PARKING, after=0)) == 4
    site.clock.advance(200)
    assert [outcome.status for outcome in site.parked()] == [Status.PARKED] * 40
    assert site.store.calls == 1
    kept = {message.message_id: message for message in site.store.pending(100)}
    assert set(kept) == {f"m{n}" for n in range(40)}
    assert kept["m7"].body == '"7 ü\u2028'.encode()
    assert kept["m7"].attributes == binary
    assert kept["m7"].due_ms - kept["m0"].due_ms == 7000
    assert site.left(PARKING) == site.left(DELAY, after=900) == []


def test_what_is_near_is_handed_over_at_once(site: Site) -> None:
    """Only what a store is for takes the way through the queue."""
    site.put(1000, "near")
    site.put(5000, "hops")
    site.put(90 * DAY, "far")
    assert sorted(site.relayed()) == [Status.FORWARDED, Status.HANDED_OVER, Status.REQUEUED]


def test_what_is_not_far_and_what_cannot_be_read_is_not_parked(site: Site) -> None:
    """A store is for what has more than 2.25 hours left; how much that is must be known."""
    for name, seconds in (("at", 8100 + 900), ("above", 8101 + 900), ("poison", "soon")):
        site.put(seconds, name)
    copies = site.left(DELAY, after=900)
    parks = {copy.message_id: site.relay.parks(copy) for copy in copies}
    assert parks == {"at": False, "above": True, "poison": False}
    without_a_store = Relay(site.queues, site.endpoint)
    assert not any(map(without_a_store.parks, copies))
    site.relay._broker_now = Mock(side_effect=SchemaMismatch("x"))  # type: ignore[method-assign]
    assert not any(map(site.relay.parks, copies))


def test_what_no_store_can_keep_is_rejected(site: Site) -> None:
    """An id that no sender may give, of a sender that is not ours."""
    site.put(90 * DAY, "m\0")
    site.clock.advance(900)
    (outcome,) = site.poll(site.new_relay(site.parking))
    assert (outcome.status, "no NUL" in str(outcome.error)) == (Status.REJECTED, True)
    [rejected] = site.left(ERRORS, after=0)
    assert rejected.body == "x"


def test_a_large_copy_is_parked_at_once(site: Site) -> None:
    """A request of SQS is billed for each 64 KiB: an object of its own costs no more."""
    site.put(90 * DAY, "large", body="x" * GROUP_BYTES)
    site.put(90 * DAY, "small", body="x" * (GROUP_BYTES - 1000))
    assert sorted(site.relayed()) == [Status.FORWARDED, Status.PARKED]
    assert [m.message_id for m in site.store.pending(9)] == ["large"]


def test_what_the_parking_queue_refuses_for_good_ends_in_the_error_queue(site: Site) -> None:
    """As what a destination refuses: each copy with the reason, after five receives. An outage does not."""
    for name in ("m1", "m2"):
        site.put(90 * DAY, name, body=name)
    fates = []
    for failure in [REFUSED] * 4 + [AWAY, REFUSED]:
        site.queues.failing = {PARKING: failure}
        fates += site.relayed()
    assert fates == [Status.FAILED] * 10 + [Status.REJECTED] * 2
    told = {copy.body: text_of(copy.attributes, ERROR) for copy in site.left(ERRORS, after=0)}
    assert (sorted(told), site.left(DELAY)) == (["m1", "m2"], [])
    assert all("InvalidMessageContents: refused" in str(each) for each in told.values())


@pytest.mark.parametrize("due_ms", [None, 0], ids=["cancelled", "moved"])
def test_amendments_left_while_it_gathers_are_heeded(site: Site, due_ms: int | None) -> None:
    """Those for this message: one that was sent after the amendment has the same id and goes its way."""
    site.put(90 * DAY, "m")
    site.clock.advance(60)
    now_ms = site.clock.now_ms()
    new = None if due_ms is None else now_ms + 50 * DAY * 1000
    site.store.amend([Amendment(message_id="m", at_ms=now_ms, due_ms=new)])
    site.relayed()
    expected = Status.CANCELLED if new is None else Status.PARKED
    sent_for_ms = site.clock.now_ms() + (90 * DAY - 960) * 1000
    told = [(outcome.status, outcome.due_ms) for outcome in site.parked()]
    assert told == [(expected, new or sent_for_ms)]
    assert [m.due_ms for m in site.store.pending(9)] == ([] if new is None else [new])
    site.put(95 * DAY, "m")
    site.relayed()
    site.store.cancel(["m"])
    assert [outcome.status for outcome in site.parked()] == [Status.PARKED]
    assert [m.due_ms for m in site.store.pending(9)] != [new]


def test_moved_so_near_that_it_hops_or_is_handed_over(site: Site) -> None:
    """A new due time may be sooner than a store releases."""
    for name, seconds in (("hops", 6000), ("soon", 1000)):
        site.put(90 * DAY, name)
        now_ms = site.clock.now_ms() + 1
        site.store.amend([Amendment(message_id=name, at_ms=now_ms, due_ms=now_ms + seconds * 1000)])
    site.relayed()
    site.queues.failing = {DELAY: AWAY}
    fates = {outcome.copy.message_id: outcome.status for outcome in site.parked()}
    assert fates == {"hops": Status.FAILED, "soon": Status.HANDED_OVER}
    site.queues.failing = {}
    [again] = site.parked()
    assert (again.status, again.due_ms) == (Status.REQUEUED, now_ms + 6_000_000)
    [copy] = site.left(DELAY, after=900)
    assert copy.message_id == "hops"
    assert copy.attributes[DELAY_SECONDS] == string("5101")
    assert site.left(PARKING) == []


def test_store_out_of_reach_leaves_the_groups_in_their_queue(site: Site) -> None:
    """They are parked when it is back; nothing hops, nothing is rejected."""
    site.put(90 * DAY, "m")
    site.relayed()
    site.store.out_of_reach = True
    (failed,) = site.parked()
    due_ms = site.clock.now_ms() + (90 * DAY - 900) * 1000
    assert (failed.status, failed.error, failed.due_ms) == (Status.FAILED, "out of reach", due_ms)
    assert site.parked() == []
    site.store.out_of_reach = False
    site.clock.advance(200)
    assert [outcome.status for outcome in site.parked()] == [Status.PARKED]


def test_another_version_is_refused_before_anything_is_sent(site: Site) -> None:
    """By who runs already, too: by the delay consumer with near copies in its batch, and by who parks."""
    for name, seconds in (("far", 90 * DAY), ("near", 1000)):
        site.put(seconds, name)
    copies = site.left(DELAY, after=900)
    forward(site, copies[:1])

    error: StoreError = StoreError("unreadable")

    def amendments(message_ids: Sequence[str]) -> Any:
        raise error

    site.store.amendments = amendments
    given = site.queues, site.endpoint, site.settings(parking=site.parking)
    ForwardingRelay(*given)  # what forwards does not need it
    error = SchemaMismatch("table orders")
    with pytest.raises(SchemaMismatch):
        site.relay.process(copies)
    with pytest.raises(SchemaMismatch):
        site.parked()
    with pytest.raises(SchemaMismatch):
        ForwardingRelay(*given)
    assert (len(site.left(DELAY)), len(site.left(PARKING)), site.left("orders")) == (2, 1, [])


def test_of_a_group_in_part_settled_the_rest_goes_into_another(site: Site) -> None:
    """So that what was handed over is not handed over again with it."""
    site.forward_two()
    site.store.out_of_reach = True
    fates = {o.copy.message_id: o.status for o in settled(site.parker, more=_twice())}
    assert fates == {"parks": Status.FAILED, "soon": Status.HANDED_OVER}
    [again] = site.left(PARKING)
    assert [copy.message_id for copy in unpacked(again)] == ["parks"]


def test_a_group_stays_whole_where_no_time_is_left_for_its_rest(site: Site) -> None:
    """What was handed over may be so again; what was not is not lost."""
    site.forward_two()
    site.store.out_of_reach = True
    times = iter([True])
    outcomes = settled(site.parker, more=_twice(), held=lambda: next(times, False))
    assert [o.status for o in outcomes] == [Status.FAILED, Status.HANDED_OVER]
    [group] = site.left(PARKING)
    assert [copy.message_id for copy in unpacked(group)] == ["parks", "soon"]


def test_nothing_is_sent_without_time_for_it(site: Site) -> None:
    """Not what was moved so near that it is to be handed over, either."""
    site.forward_two()
    outcomes = settled(site.parker, more=_twice(), held=lambda: False)
    assert [outcome.status for outcome in outcomes] == [Status.PARKED, Status.FAILED]
    assert site.left("orders", after=2000) == []
    assert len(site.left(PARKING)) == 1


def test_nothing_is_sent_once_others_may_be_given_the_same_groups(site: Site) -> None:
    """However long the caller may go on: a round ends before its groups are visible again, and the next
    round has all the time again. Where receiving takes long, less is received."""
    site.forward_two(1500)
    site.store.meanwhile = lambda: site.clock.advance(175)
    fates = {o.copy.message_id: o.status for o in settled(site.parker, more=_twice())}
    assert fates == {"parks": Status.PARKED, "soon": Status.FAILED}
    site.clock.advance(6)
    site.store.meanwhile = bool
    fates = {o.copy.message_id: o.status for o in site.parked()}
    assert fates == {"parks": Status.PARKED, "soon": Status.HANDED_OVER}
    assert len(site.left("orders", after=2000)) == 1


def test_a_round_receives_for_a_minute(site: Site) -> None:
    """So that most of the time for which its groups are hidden is left to settle them."""
    for n in range(400):
        site.put(90 * DAY, f"m{n}", body="x" * 40_000)
    site.relayed()
    received: Any = site.queues.receive_batch

    def slow(*arguments: Any, **named: Any) -> Any:
        assert named["wait_seconds"] == 1, "all servers are asked, and nobody waits for longer"
        site.clock.advance(7)
        return received(*arguments, **named)

    site.store.stored_at_once = 400
    site.queues.receive_batch = slow  # type: ignore[method-assign]
    outcomes = site.parked()
    assert [outcome.status for outcome in outcomes] == [Status.PARKED] * 400
    assert site.store.calls == 5


def test_what_came_before_a_refused_receive_is_parked(site: Site) -> None:
    """It would be hidden for three minutes; only then is it told that no more can be received."""
    for n in range(130):
        site.put(90 * DAY, f"m{n}")
    site.relayed()
    site.store.stored_at_once = 130
    away = QueueUnavailable("throttled")
    first = site.queues.receive_batch(PARKING, wait_seconds=0)
    with patch.object(site.queues, "receive_batch", side_effect=[first, away, away]):
        rounds = site.parker.rounds(more=lambda: True, crowded=Mock(side_effect=AssertionError))
        assert {outcome.status for outcome in next(rounds)} == {Status.PARKED}
        with pytest.raises(QueueUnavailable):
            next(rounds)
    assert len(first) == 10
    assert len(site.left(PARKING)) == 3


@pytest.mark.parametrize("ids", [{}, {"MessageDeduplicationId": ""}])
def test_copies_without_ids_are_not_taken_for_one_another(site: Site, ids: dict[str, str]) -> None:
    """A group is deleted with all its copies: each of them has been settled by then."""
    delay = {DELAY_SECONDS: {"dataType": "String", "stringValue": "60"}}
    texts = [
        json.dumps({"body": f"{n}", "attributes": ids, "messageAttributes": delay})
        for n in range(3)
    ]
    for body in (group_of(texts[:2]), group_of(texts[2:])):
        site.queues.send_batch(PARKING, [OutgoingMessage(body, {}, len(body))])
    fates = [outcome.status for outcome in site.parked()]
    arrived = [*site.left("orders", after=100), *site.left(ERRORS, after=0)]
    assert (len(fates), sorted(copy.body for copy in arrived)) == (3, ["0", "1", "2"])
    assert site.left(PARKING) == []


def test_a_hundred_and_thirty_are_parked_fifty_at_a_time(site: Site) -> None:
    """More groups than one receive brings, and than one delete takes; all have an outcome. They stay hidden
    from others for three minutes meanwhile, however short the queue's own visibility is."""
    for n in range(130):
        site.put(90 * DAY, f"m{n}")
    site.relayed()
    taken: list[object] = []

    def meanwhile() -> None:
        site.clock.advance(50)
        taken.extend(site.queues.receive_batch(PARKING, wait_seconds=0, visibility_seconds=0))

    site.store.meanwhile = meanwhile
    site.store.stored_at_once = 100
    outcomes = site.parked()
    assert len({outcome.copy.message_id for outcome in outcomes}) == len(outcomes) == 130
    assert (site.store.calls, len(taken)) == (2, 3)
    assert site.left(PARKING) == []


def test_what_is_parked_in_one_call_fits_the_memory(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much the store would take at once: here the groups of one receive are enough."""
    for n in range(130):
        site.put(90 * DAY, f"m{n}")
    site.relayed()
    site.store.stored_at_once = 1000
    monkeypatch.setattr("sqsdelay.relaying.gathering.MAX_BYTES", 1)
    assert len(site.parked()) == 130
    assert site.store.calls == 2


def test_no_more_is_received_than_there_is_time_for(site: Site) -> None:
    """Each receive may be the last one."""
    for n in range(30):
        site.put(90 * DAY, f"m{n}")
    site.relayed()
    site.queues.calls.clear()
    assert settled(site.parker, more=lambda: False) == []
    assert site.queues.calls.count("receive") == 0


def test_another_message_of_the_same_id_is_rejected(site: Site) -> None:
    """It is in the store already, with another body: nobody can tell which is meant."""
    for body in ("one", "other"):
        site.put(90 * DAY, "m", body=body)
        site.clock.advance(400)  # SQS forgets the first one's deduplication id
        site.relayed()
    told = [(outcome.status, outcome.error) for outcome in site.parked()]
    assert [status for status, _ in told] == [Status.PARKED, Status.REJECTED]
    assert str(told[1][1]).startswith("conflict: ")


def test_groups_are_as_full_as_they_may_be(site: Site) -> None:
    """None is above what SQS bills as one request, and none had room for the next copy. What the parking
    queue does not take stays in the delay queue."""
    for n in range(40):
        site.put(90 * DAY, f"m{n}", body="x" * (n % 7 * 3_000))
    copies = site.left(DELAY, after=900)
    # Two that are two bytes too long for one group.
    room = (GROUP_BYTES + 2 - len(group_of([packed(copies[0])] * 2))) // 2
    copies[:2] = [replace(copies[0], body="x" * room)] * 2
    site.queues.failing[PARKING] = AWAY
    assert set(forward(site, copies)) == {AWAY}
    site.queues.failing.clear()
    assert set(forward(site, copies)) == {None}
    groups = site.left(PARKING, after=0)
    ids = [copy.sqs_message_id for group in groups for copy in unpacked(group)]
    assert ids == [copy.sqs_message_id for copy in copies]
    for group, after in pairwise(groups):
        with_next = [*map(packed, unpacked(group)), packed(unpacked(after)[0])]
        assert len(group.body) <= GROUP_BYTES < len(group_of(with_next))
    site.queues.delete_queue(PARKING)
    assert {(f.code, f.transient) for f in forward(site, copies) if f} == {("QueueMissing", True)}


def test_a_group_that_is_not_deleted_is_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes again, and is parked as the same messages."""
    site.put(90 * DAY, "m")
    site.relayed()
    site.queues.deletes_fail = True
    with caplog.at_level(logging.INFO, "sqsdelay.relaying"):
        settled(site.parker, more=_twice())
    assert caplog.messages == ["a group is not deleted: away"]


def _twice() -> Any:
    """Time for one receive that brings something."""
    left = [True, True]
    return lambda: bool(left) and left.pop()


def test_unreadable_groups_end_in_the_error_queue(site: Site) -> None:
    """Whole, with the reason; those beside them are parked."""
    site.put(90 * DAY, "m")
    site.relayed()
    for body in ("poison", '{"version":2,"copies":[]}', '{"version":1,"copies":[7]}'):
        site.queues.send_batch(PARKING, [OutgoingMessage(body, {}, len(body))])
    fates = [outcome.status for outcome in site.parked()]
    assert sorted(fates) == [Status.PARKED, *[Status.REJECTED] * 3]
    rejected = site.left(ERRORS, after=0)
    assert {copy.body[:6] for copy in rejected} == {"poison", '{"vers'}
    reasons = sorted(str(copy.attributes[ERROR]) for copy in rejected)
    assert all("not a group of copies" in reason for reason in reasons)
    assert sum("version 2; this sqsdelay reads 1" in reason for reason in reasons) == 1
    assert site.left(PARKING) == []


def test_killed_between_put_and_delete_it_is_parked_again_as_one(site: Site) -> None:
    """The group is still in its queue; the store knows its messages."""
    site.put(90 * DAY, "m")
    site.relayed()
    [group] = site.queues.receive_batch(PARKING, wait_seconds=0, visibility_seconds=1)
    assert len(unpacked(group)) == 1
    site.parked()
    site.clock.advance(2)
    site.parked()
    assert site.store.pending_count() == 1


def test_without_its_parking_queue_copies_stay_in_the_delay_queue() -> None:
    """They come back; nothing is lost while a deployment is halfway."""
    site = Site()
    site.queues.delete_queue(PARKING)
    site.put(90 * DAY, "m")
    copies = site.left(DELAY, after=900)
    assert [outcome.status for outcome in site.relay.process(copies)] == [Status.FAILED]
    assert [copy.message_id for copy in site.left(DELAY)] == ["m"]


def test_a_group_tells_first_sending_trace_and_fifo_ids() -> None:
    """All that decides what becomes of a copy later."""
    copy = a_copy(
        {"A": string("1")},
        body="é",
        received_at=1.0,
        sent_ms=2_000,
        first_receive_ms=3_000,
        receive_count=1,
        group_id="m",
        deduplication_id="hop.1000." + "0" * 64,
        trace_header="Root=1",
    )
    outer = OutgoingMessage(group_of([packed(copy)]), {}, 1)
    assert '"é"' in outer.body  # escaped, it would be three times as long
    received = ReceivedMessage(outer.body, {}, "outer", "g", 9.0, 5_000, 6_000, 4)
    [found] = unpacked(received)
    assert (found.message_id, found.first_sent_ms, found.sent_ms) == ("m", 1000, 2000)
    assert (found.trace_header, found.receive_count, found.first_receive_ms) == ("Root=1", 4, None)
    assert found.received_at == received.received_at
    assert (found.attributes, found.receipt_handle) == (copy.attributes, "outer")


def test_a_stamp_that_a_group_claims_is_not_sqs_s(site: Site) -> None:
    """Who may send to the parking queue would put the clock of all messages ahead: they would be early."""
    ahead = str(site.clock.true_ms + 600_000)
    record = {"body": "x", "attributes": {"ApproximateFirstReceiveTimestamp": ahead}}
    body = group_of([json.dumps(record)])
    site.queues.send_batch(PARKING, [OutgoingMessage(body, {})])
    assert [outcome.status for outcome in site.parked()] == [Status.REJECTED]
    assert site.queues.broker_clock.now_ms() <= site.clock.true_ms


def test_its_name_is_beside_the_endpoints_others() -> None:
    """Of a FIFO endpoint, too; wherever the endpoint is."""
    arn = "arn:aws:sqs:eu-west-1:123456789012:orders.fifo"
    expected = QueueRef("orders-parking", "123456789012", "eu-west-1")
    assert Endpoint.parse(arn).parking_queue == expected


def test_a_parking_queue_without_a_store_is_refused() -> None:
    """The setting would do nothing."""
    with pytest.raises(ConfigurationError, match="has no effect without parking"):
        ForwardingRelay(Site().queues, Endpoint.parse("orders"), RelaySettings())


def test_the_ledger_tells_where_a_message_waits() -> None:
    """Forwarded by the consumer, who shares its requests; parked, or moved on, by the dispatcher, however
    many thousands it received together."""
    site = Site()
    for number in range(12):
        site.put(DAY, f"m{number}")
    site.relayed()
    said = {(event.kind, event.source) for event in site.ledger.events}
    assert said == {(EventKind.FORWARDED, Source.CONSUMER)}
    assert [event.batch for event in site.ledger.events] == [10] * 10 + [2] * 2
    assert all(event.due_ms is not None and event.size is None for event in site.ledger.events)
    site.ledger.events.clear()
    site.parked()
    assert {(event.kind, event.source, event.receive_batch) for event in site.ledger.events} == {
        (EventKind.PARKED, Source.DISPATCHER, None)
    }
    assert len(site.ledger.events) == 12


def test_what_is_due_by_then_waits_in_a_fifo_endpoints_due_queue() -> None:
    """It has not arrived: the ledger tells a hop with a message timer, as of any other."""
    site = Site("orders.fifo")
    ids = {GROUP_ID: string("g"), DEDUPLICATION_ID: string("d")}
    site.put({DELAY_SECONDS: string(str(3 * 3600)), **ids}, "a")
    assert site.relayed() == [Status.FORWARDED]
    site.clock.advance(3 * 3600 - 1000)
    site.parked()
    (told,) = [event for event in site.ledger.events if event.kind is not EventKind.FORWARDED]
    assert (told.kind, told.source, told.late_ms) == (EventKind.HOP, Source.DISPATCHER, None)
    assert told.timer_seconds
