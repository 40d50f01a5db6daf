"""Two messages of one id in an S3 store without look-up: both arrive, and no other pays for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqsdelay import Message
from sqsdelay.core.delay import utc
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import ConfigurationError, MessageConflict, QueueUnavailable, StoreUnavailable
from sqsdelay.parking.parking import Change, Parking
from sqsdelay.ports.queues import Failure
from sqsdelay.relaying.outcomes import Status
from sqsdelay.stores import S3Store
from sqsdelay.testing import InMemoryOutbox, InMemoryStore, ManualClock
from tests.faulty import FaultyStore
from tests.messages import a_message
from tests.unit.relay_site import DAY, S3Site

TRANSIENT = Failure("InternalError", QueueUnavailable("try again"), transient=True)


@pytest.fixture
def site() -> S3Site:
    return S3Site()


def test_a_batch_with_one_id_twice_is_parked(site: S3Site) -> None:
    """Nothing raises in the consumer, and what was received with them is parked, too."""
    for body, name in (("one", "x"), ("two", "x"), ("one", "x"), ("other", None)):
        site.new_sender().send("orders", body, due_at=site.due_at, message_id=name)
    site.clock.advance(900)
    assert site.statuses() == [Status.PARKED] * 4
    assert sorted(m.body for m in site.store.pending(9)) == [b"one", b"other", b"two"]
    assert site.run(3 * DAY, tick=600) == ["one", "other", "two"]


def test_a_call_with_one_id_twice_has_a_result_for_each(site: S3Site) -> None:
    """An equal message is the same one."""
    given = [
        Message(body, due_at=site.due_at, message_id=name)
        for body, name in (("one", "x"), ("one", "x"), ("two", "x"), ("z", "z"))
    ]
    results = site.sender.send_many("orders", given)
    assert [(r.message_id, r.error) for r in results] == [
        ("x", None),
        ("x", None),
        ("x", None),
        ("z", None),
    ]
    assert site.run(3 * DAY, tick=600) == ["one", "two", "z"]


def test_a_store_that_cannot_find_an_id_fails_that_message_alone(clock: ManualClock) -> None:
    """A store of somebody's own, which has this id already and cannot say what it is."""

    class Blind(InMemoryStore):
        def find(self, message_id: str) -> StoredMessage | None:
            raise ConfigurationError(f"{message_id} cannot be found")

    def message(name: str, body: bytes = b"x") -> StoredMessage:
        due_ms = clock.true_ms + DAY * 1000
        return a_message(name, due_ms, body=body)

    store = Blind(clock)
    store.store([message("known")])
    given = [message("known"), message("a"), message("a"), message("a", b"other"), message("b")]
    first, *others = Parking(store, after_seconds=900).park(given)
    assert isinstance(first, ConfigurationError)
    assert others[:2] + others[3:] == [True, False, True]
    assert isinstance(others[2], MessageConflict)


@pytest.mark.parametrize("apart", [0, 1])
def test_messages_of_one_id_are_not_merged_into_one(site: S3Site, apart: int) -> None:
    """Four small objects of a slot are: their messages differ in the body alone, or in the due time."""
    bodies = [f"b{n}" for n in range(4)]
    for n, body in enumerate(bodies):
        due_at = utc(site.clock.true_ms + (3 * DAY + n * apart) * 1000)
        site.sender.send("orders", body, due_at=due_at, message_id="x")
    for limit in (1, 2, 4):
        assert len(list(pages(site.store, limit))) == 4
    site.clock.advance(3 * DAY - 3600)
    assert site.run(2 * 3600) == bodies
    assert site.store.pending_count() == 0


def pages(store: S3Store, limit: int) -> Iterator[StoredMessage]:
    after = None
    while page := store.pending(limit, after=after):
        yield from page
        after = (page[-1].due_ms, page[-1].message_id)


def test_moving_one_of_two_leaves_the_other(site: S3Site) -> None:
    """Somebody gave an id that sqsdelay made up to another message: neither is lost."""
    mine = site.sender.send("orders", "one", due_at=site.due_at).message_id or ""
    site.sender.send("orders", "two", due_at=site.due_at, message_id=mine)
    site.sender.send("orders", "two", due_at=site.due_at, message_id=mine)
    assert site.sender.reschedule("orders", mine, delay=4 * DAY) is Change.DONE
    assert set(site.run(4 * DAY + 1200, tick=600)) == {"one", "two"}


@pytest.mark.parametrize("apart", [0, 1])
def test_a_failed_send_is_that_message_s_alone(site: S3Site, apart: int) -> None:
    """The other one of its id is released: what is noted for one is not for both."""
    for n, body in enumerate(("one", "two")):
        due_at = utc(site.clock.true_ms + (3 * DAY + n * apart) * 1000)
        site.sender.send("orders", body, due_at=due_at, message_id="x")
    site.clock.advance(3 * DAY - 3600)
    site.queues.failing["two"] = TRANSIENT
    assert site.run(3600 + 600) == ["one"]
    site.queues.failing.clear()
    assert site.run(3600) == ["one", "two"]
    assert site.store.pending_count() == 0


def test_a_removal_that_failed_is_remembered_of_that_message_alone(clock: ManualClock) -> None:
    """Another of its id and due time, claimed next, was not sent before."""

    store = FaultyStore(clock, down={"remove"})
    outbox = InMemoryOutbox(clock)
    dispatcher = Dispatcher(store, outbox, clock=clock)
    given = [a_message("x", clock.true_ms, body=body) for body in (b"one", b"two")]
    store.store(given[:1])
    with pytest.raises(StoreUnavailable):
        dispatcher.dispatch()
    store.down.clear()
    store.cancel(["x"])
    store.store(given[1:])
    dispatcher.dispatch()
    assert [message.body for message in outbox.sent] == [b"one", b"two"]
