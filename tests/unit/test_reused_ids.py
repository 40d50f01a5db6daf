"""A message and what it leaves behind: a former due time, a former amendment, another message of its id."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_MAX_DELAY_SECONDS, MAX_DUE_MS
from sqsdelay.core.message import (
    DELAY_MS,
    DELAY_SECONDS,
    DUE_AT,
    ERROR,
    MESSAGE_ID,
    WAS_DUE_AT,
    Message,
    OutgoingMessage,
    size_of,
    string,
)
from sqsdelay.core.outgoing import was_due_ms
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage, read_delay
from sqsdelay.errors import (
    InvalidDelay,
    MessageConflict,
    ReadInPart,
    StoreUnavailable,
)
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Change, ParkingSettings
from sqsdelay.relaying import Relay, Status
from sqsdelay.testing import InMemoryStore
from tests.messages import a_copy
from tests.unit.relay_site import Site

DAY = 86_400
ORDERS = Endpoint.parse("orders")
DELAY = ORDERS.delay_queue.name
ERRORS = ORDERS.error_queue.name
N_ID = "NServiceBus.MessageId"


@pytest.fixture
def site() -> Site:
    return Site(park_after=DEFAULT_PARK_AFTER_SECONDS)


def arrived(site: Site, *relays: Relay, after: float = 900) -> tuple[float, ReceivedMessage]:
    """Serve the delay queue until a message arrives; how long that took, in seconds."""
    start = site.clock.true_ms
    for _ in range(200):
        site.clock.advance(after)
        after = 100
        for relay in relays or (site.relay,):
            site.poll(relay)
        if copies := site.received():
            site.queues.delete_batch("orders", copies)
            return (site.clock.true_ms - start) / 1000, copies[0]
    pytest.fail("nothing arrived")


def hopped(site: Site, *relay: Relay) -> list[Status]:
    """What becomes of all copies once a hop is over."""
    site.clock.advance(900)
    return site.statuses(*relay)


def waiting(site: Site) -> list[ReceivedMessage]:
    """All copies in the delay queue once a hop is over; of one group the second comes after the first."""
    site.clock.advance(900)
    found = []
    while copies := site.received(DELAY):
        found += copies
        site.queues.delete_batch(DELAY, copies)
    return found


# A former due time.


@pytest.mark.parametrize("age", [0, 900, 2 * DAY, 40 * DAY])
@pytest.mark.parametrize(
    ("stale", "by_nservicebus"), [(DUE_AT, True), (WAS_DUE_AT, True), (WAS_DUE_AT, False)]
)
def test_a_message_sent_again_with_all_its_attributes_waits_for_its_new_delay(
    site: Site, age: float, stale: str, by_nservicebus: bool
) -> None:
    """NServiceBus's delayed retries copy what they got and set DelaySeconds anew, and so do others. It is
    another message: receivers would drop it as seen under the former id."""
    due_ms = site.clock.true_ms
    site.clock.advance(age)
    attributes = {
        "user": string("x"),
        MESSAGE_ID: string("former"),
        stale: string(str(due_ms)),
        DELAY_SECONDS: string("2000"),
        DELAY_MS: string("1999500"),
    }
    if by_nservicebus:
        attributes[N_ID] = string("n-1")
    else:
        del attributes[DELAY_MS]
    site.put(attributes, "n-1")
    sent_ms = site.clock.true_ms
    seconds, copy = arrived(site, site.new_relay())
    assert 2000 <= seconds <= 2100
    assert was_due_ms(copy.attributes) == sent_ms + 2_000_000
    assert copy.attributes[MESSAGE_ID] == string("n-1")
    assert DUE_AT not in copy.attributes


@pytest.mark.parametrize(
    ("group", "deduplication"),
    [
        ("order-7", "send.order-7.1"),
        ("tenant-3", "retry-2"),
        ("tenant-3", "send." + "a" * 64),
        ("send." + "a" * 64, "another"),
    ],
)
def test_the_attribute_is_the_id_whatever_group_and_deduplication_id_are(
    site: Site, group: str, deduplication: str
) -> None:
    """A sender in any language gets its own id back: where it arrives, and where it is cancelled."""
    attributes = {DELAY_SECONDS: string("2000"), MESSAGE_ID: string("order-7")}

    def send() -> None:
        size = size_of("x", attributes)
        entry = OutgoingMessage("x", attributes, size, None, group, deduplication)
        site.queues.send_batch(DELAY, [entry])

    send()
    _, copy = arrived(site)
    assert copy.attributes[MESSAGE_ID] == string("order-7")
    site.clock.advance(300)
    send()
    assert site.sender.cancel("orders", "order-7") is Change.REQUESTED
    assert hopped(site) == [Status.CANCELLED]


def test_an_attribute_that_is_no_id_is_none(site: Site) -> None:
    """It could be no message group of the next hop."""
    site.put({DELAY_SECONDS: string("2000"), MESSAGE_ID: string("order 7")}, "m-1")
    _, copy = arrived(site, site.new_relay())
    assert copy.attributes[MESSAGE_ID] == string("m-1")


def test_what_was_due_steers_nothing_on_the_delay_queue(site: Site) -> None:
    """Whatever it says, beside a due time that steers; it is gone with the next hop."""
    due_ms = site.clock.true_ms + 2_500_000
    attributes = {
        DELAY_SECONDS: string("2500"),
        DUE_AT: string(str(due_ms)),
        WAS_DUE_AT: string("tomorrow"),
    }
    site.put(attributes, "m-1")
    assert hopped(site, site.new_relay()) == [Status.REQUEUED]
    (copy,) = waiting(site)
    assert set(copy.attributes) == {DELAY_SECONDS, DUE_AT, MESSAGE_ID}
    assert read_delay(copy) == DelayedMessage("m-1", due_ms)


@pytest.mark.parametrize("hop", [None, "hop." + "a" * 64])
def test_copies_of_a_former_version_arrive_when_they_are_due(site: Site, hop: str | None) -> None:
    """A `due_at=` of its sender, and what its relay requeued, also where an NServiceBus endpoint has
    let the seconds drift by an hour since."""
    due_ms = site.clock.true_ms + 1_700_500
    late = 3600 if hop else 0
    attributes = {DELAY_SECONDS: string(str(1701 + late)), DUE_AT: string(str(due_ms))}
    entry = OutgoingMessage("x", attributes, 100, None, "m-1", hop or "m-1")
    site.queues.send_batch(DELAY, [entry])
    seconds, copy = arrived(site, site.new_relay())
    assert 1700.5 <= seconds <= 1800
    assert copy.attributes[MESSAGE_ID] == string("m-1")


def test_a_receiver_passes_on_what_it_got(site: Site) -> None:
    """Nothing of the first delay rules the second; the user's own attributes stay."""
    sender, relay = site.new_sender(), site.new_relay()
    sender.send("orders", "x", delay=1000, attributes={"user": "x"}, message_id="m-1")
    _, first = arrived(site, relay)
    for absolute in (False, True):
        when: dict[str, Any] = {"delay": 1000}
        if absolute:
            when = {"due_at": utc(site.clock.true_ms + 1_000_000)}
        result = sender.send("orders", "x", attributes=first.attributes, **when)
        seconds, again = arrived(site, relay)
        assert 1000 <= seconds <= 1100
        assert again.attributes["user"] == string("x")
        assert again.attributes[MESSAGE_ID] == string(result.message_id or "")
        assert result.message_id != "m-1"
    sender.send("orders", "x", attributes=first.attributes)
    (direct,) = site.received()
    assert direct.attributes == {"user": string("x")}


# A former amendment.


@pytest.mark.parametrize("pause", [0, 10, 300, 5000])
@pytest.mark.parametrize("with_store", [True, False])
def test_a_cancelled_id_can_be_used_again(site: Site, pause: float, with_store: bool) -> None:
    """What is sent after the amendment is another message, though the delay queue remembers the former for
    five minutes: with the store at once, without it once SQS's clock, known to the second, is past."""
    first = site.sender if with_store else site.new_sender()
    first.send("orders", "x", delay=2000, message_id="remind-1")
    assert site.sender.cancel("orders", "remind-1") is Change.REQUESTED
    again = site.sender if with_store else site.new_sender()
    site.clock.advance(pause if with_store else max(pause, 2.0))
    again.send("orders", "x", delay=2000, message_id="remind-1")
    sent_ms = site.clock.true_ms
    found = []
    for _ in range(10):
        site.clock.advance(450)
        site.statuses()
        copies = site.received()
        found += [(site.clock.true_ms - sent_ms) / 1000 for _ in copies]
        site.queues.delete_batch("orders", copies)
    assert len(found) == 1
    assert 2000 <= found[0] <= 2500


def test_cancelled_twice_sent_twice(site: Site) -> None:
    """All in one millisecond: each cancellation is of what was sent before it, the last included."""
    for _ in range(3):
        site.sender.send("orders", "x", delay=2000, message_id="m")
        site.sender.cancel("orders", "m")
    assert hopped(site) == [Status.CANCELLED] * 3


def test_a_moved_id_can_be_used_again(site: Site) -> None:
    """Its amendment moves the first message and not the second, which would come early."""
    site.sender.send("orders", "first", delay=5000, message_id="m")
    site.sender.reschedule("orders", "m", delay=1000)
    site.sender.send("orders", "second", delay=5000, message_id="m")
    seconds, copy = arrived(site)
    assert (copy.body, 1000 <= seconds <= 1100) == ("first", True)
    seconds, copy = arrived(site, after=100)
    assert (copy.body, 3900 <= seconds <= 4100) == ("second", True)


def test_moving_a_message_leaves_a_cancelled_one_of_its_id_cancelled(site: Site) -> None:
    """Both wait in the delay queue when the second is moved."""
    site.sender.send("orders", "first", delay=2000, message_id="m")
    site.sender.cancel("orders", "m")
    site.sender.send("orders", "second", delay=2000, message_id="m")
    site.sender.reschedule("orders", "m", delay=3000)
    assert sorted(hopped(site)) == [Status.CANCELLED, Status.REQUEUED]
    seconds, copy = arrived(site)
    assert (copy.body, 2000 <= seconds <= 2200) == ("second", True)


def test_an_amendment_holds_through_many_hops(site: Site) -> None:
    """When the message was first sent travels with it: an amendment is no older for the hops since."""
    site.sender.send("orders", "x", delay=8000, message_id="m")
    for _ in range(3):
        assert hopped(site) == [Status.REQUEUED]
    site.sender.cancel("orders", "m")
    without = site.new_relay()  # did not see the amendment
    for _ in range(3):
        assert hopped(site, without) == [Status.REQUEUED]
    assert hopped(site) == [Status.CANCELLED]


def test_an_amendment_left_while_the_store_was_away_sets_nothing_apart_too_little(
    site: Site,
) -> None:
    """The sender cannot see the amendment: its message arrives all the same."""
    site.sender.send("orders", "x", delay=2000, message_id="m")
    site.sender.cancel("orders", "m")
    site.clock.advance(2)
    site.store.down = {"amendments"}
    site.sender.send("orders", "x", delay=2000, message_id="m")
    site.store.down = set()
    assert sorted(hopped(site)) == [Status.CANCELLED, Status.REQUEUED]


@pytest.mark.parametrize("change", ["cancel", "move"])
def test_a_change_right_after_the_store_came_back_holds(site: Site, change: str) -> None:
    """The message was set apart from all amendments there might be by then; this one is about it."""
    site.sender.cancel("orders", "another")  # the broker's clock is known from here on
    site.store.down = {"amendments"}
    site.sender.send("orders", "x", delay=901, message_id="m")
    site.store.down = set()
    if change == "cancel":
        assert site.sender.cancel("orders", "m") is Change.REQUESTED
    else:
        assert site.sender.reschedule("orders", "m", delay=5000) is Change.REQUESTED
    assert hopped(site) == [Status.CANCELLED if change == "cancel" else Status.REQUEUED]


@pytest.mark.parametrize("change", ["cancel", "move"])
def test_an_amendment_of_a_former_message_leaves_a_parked_one_alone(
    site: Site, change: str
) -> None:
    """Amendments are read again once a copy was parked: only for what they are about."""
    if change == "cancel":
        site.sender.cancel("orders", "m")
    else:
        site.sender.reschedule("orders", "m", delay=1000)
    site.clock.advance(10)
    site.new_sender().send("orders", "x", delay=2 * DAY, message_id="m")
    due_ms = site.clock.true_ms + 2 * DAY * 1000
    assert hopped(site) == [Status.PARKED]
    assert [message.due_ms for message in site.store.pending(9)] == [due_ms]


@pytest.mark.parametrize("released", [False, True])
def test_a_message_met_again_after_it_was_moved(site: Site, released: bool) -> None:
    """Parked by another worker, and moved between this one's look at amendments and at the store: the same
    message. Where it was cancelled there once more before it is stored, it is new and does not stay."""
    site.new_sender().send("orders", "x", delay=2 * DAY, message_id="m")
    site.clock.advance(900)
    copies = site.received(DELAY)
    assert site.relay.process(copies, delete=False)[0].status is Status.PARKED
    changes = [lambda: site.sender.reschedule("orders", "m", delay=3 * DAY)]
    if released:
        changes.append(lambda: site.sender.cancel("orders", "m"))
    keep, move, moved = site.store.store, site.store.reschedule, []

    def meanwhile(messages: Any, **given: Any) -> Any:
        if changes:
            assert changes.pop(0)() is Change.DONE
        return keep(messages, **given)

    def counted(message_id: str, due_ms: int) -> Any:
        moved.append(due_ms)
        return move(message_id, due_ms)

    site.store.store, site.store.reschedule = meanwhile, counted
    (outcome,) = site.relay.process(copies)
    assert outcome.status is (Status.CANCELLED if released else Status.PARKED)
    assert [message.due_ms for message in site.store.pending(9)] == ([] if released else moved)
    assert len(moved) == 1


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_an_old_copy_takes_no_later_message_of_its_id_away(site: Site, when: str) -> None:
    """Cancelled, and sent anew by a sender with the store: long before, and the consumer cannot read the
    amendment once; or between its reading and its parking."""
    due_at = utc(site.clock.true_ms + 2 * DAY * 1000)
    site.new_sender().send("orders", "x", due_at=due_at, message_id="m")
    site.clock.advance(900)

    def cancel_and_send_anew() -> None:
        assert site.sender.cancel("orders", "m") is Change.REQUESTED
        site.clock.advance(2)
        site.sender.send("orders", "x", due_at=due_at, message_id="m")

    if when == "before":
        cancel_and_send_anew()
        site.store.down, site.store.failures = {"amendments"}, 1
    else:
        keep = site.store.store

        def meanwhile(messages: Any, **given: Any) -> Any:
            site.store.store = keep
            cancel_and_send_anew()
            return keep(messages, **given)

        site.store.store = meanwhile
    assert site.statuses() == [Status.REQUEUED if when == "before" else Status.PARKED]
    assert hopped(site) == [Status.CANCELLED] * (when == "before")
    assert [message.message_id for message in site.store.pending(9)] == ["m"]


def test_an_old_copy_beside_the_message_sent_anew_takes_it_not_away(site: Site) -> None:
    """Both hop on while the amendment cannot be read; then each is what it was."""
    due_at = utc(site.clock.true_ms + 2 * DAY * 1000)
    site.new_sender().send("orders", "x", due_at=due_at, message_id="m")
    site.sender.cancel("orders", "m")
    site.clock.advance(2)
    site.new_sender().send("orders", "x", due_at=due_at, message_id="m")
    site.clock.advance(900)
    site.store.down, site.store.failures = {"amendments"}, 1
    assert site.statuses() == [Status.REQUEUED] * 2
    assert hopped(site) == [Status.CANCELLED, Status.PARKED]
    assert [message.message_id for message in site.store.pending(9)] == ["m"]


# Another message of its id.


def test_sent_means_this_message(site: Site) -> None:
    """Another due time is a conflict; the same one is the same message, however often it is sent."""
    sender = site.sender
    due_at = utc(site.clock.true_ms + 5 * DAY * 1000)
    first = sender.send("orders", "x", due_at=due_at, message_id="m")
    assert sender.send("orders", "x", due_at=due_at, message_id="m") == first
    with pytest.raises(MessageConflict, match=r"is in the store and due at 2027-.* not 2027-"):
        sender.send("orders", "x", due_at=due_at + timedelta(days=1), message_id="m")
    site.clock.advance(60)
    with pytest.raises(MessageConflict, match="give its due time instead"):
        sender.send("orders", "x", delay=5 * DAY, message_id="m")
    assert [utc(message.due_ms) for message in site.store.pending(9)] == [first.due]


def test_amendments_that_a_sender_cannot_read_are_taken_for_left(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows whether its id was cancelled a moment ago: it is set apart from anything left by now. Of
    other messages nothing is asked."""
    asked: list[Any] = []

    def away(message_ids: Any) -> Any:
        asked.append(list(message_ids))
        raise StoreUnavailable("away")

    monkeypatch.setattr(site.store, "amendments", away)
    site.sender.send_many(
        "orders", [Message("direct", message_id="d"), Message("made up", delay=1000)]
    )
    assert asked == []
    site.sender.send_many(
        "orders", [Message("m", delay=1000, message_id="m"), Message("x", delay=1000)]
    )
    left_ms = site.queues.broker_clock.latest_ms()
    assert (asked, caplog.messages) == ([["m"]], ["amendments of 1 messages not read: away"])
    copies = {copy.body: copy for copy in waiting(site)}
    assert re.fullmatch(rf"send\.{left_ms}\.[0-9a-f]{{64}}", copies["m"].deduplication_id or "")
    assert re.fullmatch(r"send\.[0-9a-f]{64}", copies["x"].deduplication_id or "")


def test_a_sender_reads_amendments_in_part(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is repeated sends once what can be read; what cannot perhaps twice, rather than never."""
    messages = [Message(name, delay=1000, message_id=name) for name in ("read", "unread", "moved")]
    site.sender.send_many("orders", messages)
    site.sender.cancel("orders", "moved")
    site.clock.advance(10)

    def in_part(message_ids: Any) -> Any:
        found = InMemoryStore.amendments(site.store, message_ids)
        raise ReadInPart("1 of 3 were not read", found, ["unread"])

    monkeypatch.setattr(site.store, "amendments", in_part)
    site.sender.send_many("orders", messages)
    assert Counter(copy.body for copy in waiting(site)) == {"read": 1, "unread": 2, "moved": 2}


def test_another_message_group_is_another_message(site: Site) -> None:
    """It orders by it at its destination: "sent" would lose it."""
    due_at = utc(site.clock.true_ms + 5 * DAY * 1000)
    site.sender.send("orders", "x", due_at=due_at, message_id="m", message_group_id="a")
    with pytest.raises(MessageConflict, match="message group"):
        site.sender.send("orders", "x", due_at=due_at, message_id="m", message_group_id="b")
    site.sender.send("orders", "x", due_at=due_at, message_id="m", message_group_id="a")
    assert [message.group_id for message in site.store.pending(9)] == ["a"]


def test_a_later_message_of_the_id_is_not_the_one_that_was_moved(site: Site) -> None:
    """It was sent after that was moved: two due times under one id, which the sender is told."""
    site.new_sender().send("orders", "x", delay=2 * DAY, message_id="m")
    assert hopped(site) == [Status.PARKED]
    assert site.sender.reschedule("orders", "m", delay=3 * DAY) is Change.DONE
    site.clock.advance(10)
    site.new_sender().send("orders", "x", delay=2 * DAY, message_id="m")
    assert hopped(site) == [Status.REJECTED]


@pytest.mark.parametrize("absolute", [True, False])
def test_sent_again_without_a_store_is_another_message(site: Site, absolute: bool) -> None:
    """Moved to a later time, then sent again as before: "sent" means that a copy comes at that time."""
    due_at = utc(site.clock.true_ms + 2_000_000)
    when: dict[str, Any] = {"due_at": due_at} if absolute else {"delay": 2000}
    sender = site.new_sender()
    sender.send("orders", "x", message_id="m", **when)
    site.sender.reschedule("orders", "m", delay=9000)
    site.clock.advance(2)
    assert sender.send("orders", "x", message_id="m", **when).message_id == "m"
    seconds, _ = arrived(site)
    assert 1998 <= seconds <= 2100
    seconds, _ = arrived(site, after=100)
    assert 6800 <= seconds <= 7200


@pytest.mark.parametrize("idempotent", [True, False])
def test_retries_of_one_send_are_one_message(site: Site, idempotent: bool) -> None:
    """The broker took it, the answer was lost, and the same call tried again."""
    send_batch = site.queues.send_batch

    def twice(queue_url: str, entries: Any) -> Any:
        send_batch(queue_url, entries)
        site.clock.advance(30)
        return send_batch(queue_url, entries)

    site.queues.send_batch = twice  # type: ignore[method-assign]
    site.new_sender(idempotent=idempotent).send("orders", "x", delay=2000, message_id="m")
    assert len(waiting(site)) == 1


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("pause", [0, 290, 310])
def test_who_repeats_sends_says_so(site: Site, idempotent: bool, pause: float) -> None:
    """In another process, that knows nothing of the first: one message within five minutes."""
    for _ in range(2):
        sender = site.new_sender(idempotent=idempotent)
        sender.send("orders", "x", delay=2000, message_id="m")
        site.clock.advance(pause)
    assert len(waiting(site)) == (1 if idempotent and pause < 300 else 2)


def test_nobody_can_foresee_a_senders_deduplication_id(site: Site) -> None:
    """Whoever knows all of a message, and sends first under the id it would have had, swallows nothing."""
    for _ in range(2):
        site.new_sender().send("orders", "x", delay=2000, message_id="m")
    seen = [copy.deduplication_id for copy in waiting(site)]
    assert len(set(seen)) == 2
    assert all(re.fullmatch(r"send\.[0-9a-f]{64}", told or "") for told in seen)


@pytest.mark.parametrize(
    "other",
    [
        {"body": "y"},
        {"attributes": {"user": "y"}},
        {"attributes": {"user": b"x"}},
        {"delay": 2001},
        {"delay": 2000.5},
        {"delay": None, "due": 2000},
        {"delay": None, "due": 2001},
        {"message_id": "n"},
        {"message_group_id": "g"},
    ],
)
def test_a_strangers_message_swallows_nobodys(site: Site, other: dict[str, Any]) -> None:
    """An idempotent sender's deduplication id binds id, body, attributes and delay: equal copies are one
    message, others are not, and who sends under a victim's id first takes nothing away."""
    sender = site.new_sender(idempotent=True)
    given: dict[str, Any] = {"delay": 2000, "message_id": "m", "attributes": {"user": "x"}}
    given["body"] = "x"
    changed = given | other
    if "due" in changed:
        changed["due_at"] = utc(site.clock.true_ms + changed.pop("due") * 1000)
    site.put({DELAY_SECONDS: string("2000"), "user": string("x")}, "m")
    for arguments in (given, given, changed):
        sender.send("orders", **arguments)
    assert len(waiting(site)) == 3


def test_absolute_copies_of_one_message_are_one(site: Site) -> None:
    """Sent again a minute later: what remains has changed, the message has not."""
    due_at = utc(site.clock.true_ms + 5_000_000)
    for _ in range(2):
        site.new_sender(idempotent=True).send("orders", "x", due_at=due_at, message_id="m")
        site.clock.advance(60)
    assert len(waiting(site)) == 1


# Hops of NServiceBus's.


def nservicebus_hop(site: Site, *, remaining: int) -> None:
    """As DelayedMessagesPump requeues: its deduplication id for both ids, its own attribute added."""
    for copy in waiting(site):
        attributes = dict(copy.attributes)
        attributes[DELAY_SECONDS] = string(str(remaining))
        attributes.setdefault(N_ID, string("11111111-2222-3333-4444-555555555555"))
        site.put(attributes, copy.deduplication_id or "", copy.body)
    # In production its second hop would be swallowed within five minutes; a hop lasts longer.


@pytest.mark.parametrize("order", ["nr", "rn", "rrn", "rnr", "nnr"])
@pytest.mark.parametrize("users", [0, 6])
def test_the_senders_id_survives_hops_of_nservicebus(site: Site, order: str, users: int) -> None:
    """In whatever order the two relay; and the amendment that cancels it still finds it."""
    users_attributes = {f"a{n}": "x" for n in range(users)}
    site.sender.send("orders", "x", delay=8_000, message_id="m-1", attributes=users_attributes)
    for n, who in enumerate(order, start=1):
        if who == "n":
            nservicebus_hop(site, remaining=8_000 - n * 900 + 1)
        else:
            assert hopped(site) == [Status.REQUEUED]
    seconds, copy = arrived(site)
    assert copy.attributes[MESSAGE_ID] == string("m-1")
    assert len(copy.attributes) <= 10
    assert 0 <= seconds + len(order) * 900 - 8_000 <= 101


def test_eight_attributes_leave_no_room_for_an_id_but_are_not_refused(site: Site) -> None:
    """Where only we relay the id needs no attribute of its own until the destination."""
    users = {f"a{n}": "x" for n in range(8)}
    site.new_sender().send("orders", "x", delay=4000, message_id="m-1", attributes=users)
    site.clock.advance(900)
    (copy,) = site.received(DELAY)
    assert set(copy.attributes) == {*users, DELAY_SECONDS}
    site.clock.advance(181)
    _, delivered = arrived(site, site.new_relay(), after=0)
    assert set(delivered.attributes) == {*users, MESSAGE_ID, WAS_DUE_AT}


def test_nservicebus_own_id_is_the_fallback(site: Site) -> None:
    """A copy of a former version's hop that an NServiceBus endpoint requeued has lost ours."""
    copy = a_copy(
        {N_ID: string("n-1")}, group_id="hop." + "a" * 64, deduplication_id="hop." + "a" * 64
    )
    assert (copy.message_id, copy.first_sent_ms) == ("n-1", None)
    assert replace(copy, attributes={N_ID: string("no id")}).message_id == "hop." + "a" * 64
    ours = {**copy.attributes, MESSAGE_ID: string("m-1")}
    assert replace(copy, attributes=ours).message_id == "m-1"


# Too far.


def test_what_is_due_beyond_the_limit_goes_to_the_error_queue(site: Site) -> None:
    """A forged year 9999 does not hop for ever; ten years to the second do."""
    relay = site.new_relay()
    site.put(DEFAULT_MAX_DELAY_SECONDS, "far")
    site.put((MAX_DUE_MS - site.clock.true_ms) // 1000, "9999")
    assert hopped(site, relay) == [Status.REQUEUED, Status.REJECTED]
    (rejected,) = site.received(ERRORS)
    reason = rejected.attributes[ERROR]["StringValue"]
    assert "this endpoint allows delays of up to 315360000 s; shorten it, or raise" in reason


def test_a_sender_refuses_what_would_be_rejected(site: Site) -> None:
    """On every route, at the limit and beyond; rescheduling included."""
    for sender in (
        site.new_sender(max_delay_seconds=2000),
        site.new_sender(parking=ParkingSettings(site.store, 0), max_delay_seconds=2000),
    ):
        sender.send("orders", "x", delay=2000)
        due_at = utc(site.clock.true_ms + 2_001_000)
        for when in ({"delay": 2001}, {"delay": 2000.001}, {"due_at": due_at}):
            words = r"due in 2001 s, .* of up to 2000 s; shorten it"
            with pytest.raises(InvalidDelay, match=words):
                sender.send("orders", "x", **when)
    with pytest.raises(InvalidDelay, match="due in 2001 s"):
        sender.reschedule("orders", "m", delay=2001)
