"""The S3 store at any size: what a turn reads, writes and holds has bounds, and nothing due waits for it."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, Final

import pytest

from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import StoreError
from sqsdelay.stores import S3Store
from sqsdelay.testing import ManualClock
from tests.messages import a_message
from tests.services.in_memory_s3 import InMemoryS3

MIB: Final = 2**20
DAY_MS: Final = 86_400_000
QUARTER_MS: Final = 900_000


class Parked:
    """A bucket that counts what goes over the wire, and takes its time for each request if told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.read_bytes = 0
        self.written: list[str] = []
        self.request_ms = 0.0
        self.meanwhile: Callable[[], None] | None = None
        self.s3 = InMemoryS3(around=self._around)
        self.store = self.new_store()
        self.lock = threading.RLock()

    def new_store(self, **settings: Any) -> S3Store:
        client: Any = self.s3
        return S3Store("parked", endpoint="orders", client=client, clock=self.clock, **settings)

    def _around(self, name: str, call: Callable[[], Any]) -> Any:
        with self.lock:
            self.clock.advance(self.request_ms / 1000)
            answer = call()
            if name == "GetObject":
                self.read_bytes += answer["Body"].getbuffer().nbytes
            act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return answer

    def messages(
        self, count: int, size: int, first_ms: int, *, apart_ms: int = 1
    ) -> list[StoredMessage]:
        dues = [first_ms + n * apart_ms for n in range(count)]
        return [a_message(new_message_id(due), due, body=b"x" * size) for due in dues]

    def one_object_each(self, count: int, due_ms: int) -> None:
        for message in self.messages(count, 10, due_ms):
            self.store.store([message])
        self.s3.requests.clear()

    def claimed(self, limit: int = 500, *, ahead_ms: int = 0) -> list[StoredMessage]:
        """What one claim gets, and removes."""
        with self.store.claim(limit, due_by_ms=self.clock.now_ms() + ahead_ms) as claim:
            found = list(claim.messages)
            claim.remove([each.message_id for each in found])
        return found

    def objects(self) -> list[str]:
        return [key for key in self.s3.objects if key.endswith(".jsonl.gz")]

    def next_quarter_ms(self) -> int:
        return (self.clock.now_ms() // QUARTER_MS + 1) * QUARTER_MS


@pytest.fixture
def parked() -> Parked:
    return Parked()


@contextmanager
def at_most(limit_bytes: int) -> Any:
    """What Python has allocated at once, on top of what it had before."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


def test_what_would_come_out_the_same_is_neither_read_nor_written(parked: Parked) -> None:
    """2,000 x 20 KB in a slot that is near fill their objects: there is nothing to merge them into."""
    due_ms = parked.next_quarter_ms()
    parked.store.store(parked.messages(2_000, 20_000, due_ms))
    parked.s3.requests.clear()
    for _ in range(5):
        assert parked.claimed() == []
        parked.clock.advance(61)
    assert not parked.s3.requests.keys() - {"ListObjectsV2"}


def test_objects_that_are_in_use_are_not_merged_alone(parked: Parked) -> None:
    """Three of four are held for a retry: the fourth stays as it is, too."""
    due_ms = parked.next_quarter_ms()
    parked.one_object_each(4, due_ms)
    with parked.store.claim(3, due_by_ms=due_ms + 10) as claim:
        claim.hold([each.message_id for each in claim.messages], seconds=9_000)
    before = parked.objects()
    parked.clock.advance(61)
    assert parked.claimed() == []
    assert parked.objects() == before


@pytest.mark.parametrize("count", [1_500, pytest.param(50_000, marks=pytest.mark.nightly)])
def test_what_is_due_goes_before_housekeeping(parked: Parked, count: int) -> None:
    """Of many objects of one message three claims touch those that they release."""
    parked.one_object_each(count, parked.clock.now_ms() - 5_000)
    for _ in range(3):
        assert len(parked.claimed(100)) == 100
    assert parked.s3.requests.total() - parked.s3.requests["ListObjectsV2"] <= 3 * 500


@pytest.mark.parametrize("count", [2_100, pytest.param(4_000, marks=pytest.mark.nightly)])
def test_what_is_always_due_does_not_keep_the_wheel_from_turning(
    parked: Parked, count: int
) -> None:
    """Every five minutes for a while: coarse slots that are never split would slow down what is due."""
    parked.store.store(parked.messages(count, 10, parked.clock.now_ms() - 5_000))
    parked.one_object_each(40, parked.next_quarter_ms())
    for _ in range(20):
        parked.clock.advance(20)
        assert len(parked.claimed(100)) == 100
    assert len(parked.objects()) < 41


@pytest.mark.parametrize("count", [1_000, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_many_small_objects_are_released_in_few_claims(parked: Parked, count: int) -> None:
    """Five requests for an object of one message, and a listing for each claim."""
    parked.one_object_each(count, parked.clock.now_ms() - 5_000)
    claims = 0
    while found := parked.claimed():
        claims += 1
        assert len(found) > 1
    assert claims <= count / 250
    assert parked.objects() == []
    assert parked.s3.requests.total() <= count * 6


@pytest.mark.parametrize("count", [1_500, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_a_turn_ends_in_time_and_goes_on_where_it_stopped(parked: Parked, count: int) -> None:
    """Many small objects are near, at 20 ms a request: no claim takes longer than half a minute."""
    parked.one_object_each(count, parked.clock.now_ms() + 3 * DAY_MS)
    parked.clock.advance(3 * 86_400 - 600)
    parked.request_ms = 20
    turns = 0
    while len(parked.objects()) > 3:
        begun_ms = parked.clock.now_ms()
        assert parked.claimed() == []
        assert parked.clock.now_ms() - begun_ms <= 75_000
        turns += 1
        assert turns < 60
    assert turns > 1
    assert parked.store.pending_count() == count


@pytest.mark.parametrize("count", [600, pytest.param(1_200, marks=pytest.mark.nightly)])
def test_a_turn_ends_before_something_is_due(parked: Parked, count: int) -> None:
    """What is due in five seconds is claimed within six, though much is to be merged."""
    parked.one_object_each(count, parked.clock.now_ms() + 600_000)
    due_ms = parked.clock.now_ms() + 5_000
    parked.store.store(parked.messages(1, 10, due_ms))
    parked.request_ms = 4
    while not parked.claimed():
        assert parked.clock.now_ms() - due_ms < 1_000


def test_no_turn_is_begun_that_cannot_be_ended(parked: Parked) -> None:
    """A function with ten seconds left releases what is due; a later run merges."""
    parked.one_object_each(40, parked.next_quarter_ms())
    parked.store.store(parked.messages(1, 10, parked.clock.now_ms() - 5_000))
    parked.store.seconds_left = lambda: 10
    assert len(parked.claimed()) == 1
    for _ in range(10):
        parked.clock.advance(61)
        assert parked.claimed() == []
    assert len(parked.objects()) == 40
    parked.store.seconds_left = lambda: 60
    assert parked.claimed() == []
    assert len(parked.objects()) == 1


def test_a_turn_renews_its_lease(parked: Parked) -> None:
    """S3 answers after seconds each: another dispatcher that looks later gives nothing up."""
    due_ms = parked.clock.now_ms() + 3 * DAY_MS
    for n in range(6):
        parked.store.store(parked.messages(1_000, 1_000, due_ms + n))
    parked.clock.advance(3 * 86_400 - 600)
    other = parked.new_store()

    def looks() -> None:
        with other.claim(10, due_by_ms=due_ms + 10_000) as claim:
            # It gets no more than the objects that are not being merged.
            assert claim.messages == []

    parked.request_ms = 3_000
    begun_ms = parked.clock.now_ms()

    def later() -> None:
        if parked.clock.now_ms() - begun_ms < 100_000:
            parked.meanwhile = later
        else:
            looks()

    parked.meanwhile = later
    assert parked.claimed() == []
    parked.meanwhile = None
    parked.request_ms = 0
    assert len(parked.objects()) == 2
    assert parked.store.pending_count() == 6_000


def test_what_somebody_else_left_there_stops_no_turn(parked: Parked) -> None:
    """A folder's marker, notes, a name like an object's: each is passed over."""
    like_ours = f"v1/20000101T000000Z-900/{0:015d}-{0:015d}-000001-1-a~mine.jsonl.gz"
    for key in ("decided/", "decided/notes", like_ours):
        parked.s3.objects[f"orders/{key}"] = b"x"
    parked.s3.objects[".jobs/7/mine.marks"] = b"x"
    parked.store.store(parked.messages(1, 10, parked.clock.now_ms() - 5_000))
    assert [len(parked.claimed()) for _ in range(2)] == [1, 0]


def test_who_stood_still_while_claiming_sends_nothing_that_was_cancelled(parked: Parked) -> None:
    """Its lease has ended: others were told that they have cancelled, or have released it themselves."""
    message, other = parked.messages(2, 10, parked.clock.now_ms() - 5_000)
    parked.store.store([message, other])
    user = parked.new_store()

    def hours_later() -> None:
        if parked.s3.requests["PutObject"] == 1:
            parked.meanwhile = hours_later
            return
        parked.clock.advance(3 * 3600)
        assert user.cancel([message.message_id]) == [True]

    parked.meanwhile = hours_later
    with parked.store.claim(10, due_by_ms=parked.clock.now_ms()) as claim:
        assert [each.message_id for each in claim.messages] == [other.message_id]


@pytest.mark.parametrize(
    ("count", "size", "apart_ms", "limit"),
    [
        (400, 150_000, 187_500, 40),
        (100, MIB, 100, 80),
        pytest.param(10_000, 150_000, 7_500, 128, marks=pytest.mark.nightly),
        pytest.param(2_000, MIB, 100, 128, marks=pytest.mark.nightly),
    ],
)
def test_memory_has_bounds(
    parked: Parked, count: int, size: int, apart_ms: int, limit: int
) -> None:
    """Split, merged and released: in memory is less than waits."""
    day_ms = (parked.clock.now_ms() // DAY_MS + 3) * DAY_MS
    for start in range(0, count, 50):
        parked.store.store(parked.messages(50, size, day_ms + start * apart_ms, apart_ms=apart_ms))
    parked.store = parked.new_store()
    parked.clock.advance((day_ms - parked.clock.now_ms()) / 1000 - 600)
    left = count
    with at_most(limit * MIB):
        while left:
            found = len(parked.claimed())
            left -= found
            if not found:
                parked.clock.advance(3_600)


def test_a_page_of_large_messages_takes_the_memory_of_a_page(parked: Parked) -> None:
    """Objects that overlap are read one after the other, and of each is kept what the page needs."""
    due_ms = parked.clock.now_ms() + 40 * DAY_MS
    for start in range(12):
        parked.store.store(parked.messages(7, MIB, due_ms + start, apart_ms=1000))
    with at_most(75 * MIB):
        assert len(parked.new_store().pending(13)) == 13


@pytest.mark.parametrize("count", [20_000, pytest.param(50_000, marks=pytest.mark.nightly)])
def test_a_batch_of_ten_does_not_read_all_amendments(parked: Parked, count: int) -> None:
    """Many are there: what ten copies need of them is some kilobytes."""
    at_ms = parked.clock.now_ms()
    ids = [new_message_id(at_ms + n) for n in range(count)]
    parked.store.amend([Amendment(message_id=each, at_ms=at_ms) for each in ids])
    parked.read_bytes = 0
    store = parked.new_store()
    assert set(store.amendments([*ids[:10], "another"])) == set(ids[:10])
    assert parked.read_bytes < 100_000


@pytest.mark.parametrize("text", [b"{", b'{"amendments": [{"message_id": "a", "until": 7}]}'])
def test_an_amendment_that_cannot_be_read_is_not_none(parked: Parked, text: bytes) -> None:
    """Cut off, or of another version: the message waits, and no other with it."""
    parked.store.amend([Amendment(message_id=n, at_ms=parked.clock.now_ms()) for n in "ab"])
    (mangled,) = [k for k, body in parked.s3.objects.items() if b'"message_id": "a"' in body]
    parked.s3.objects[mangled] = text
    with pytest.raises(StoreError, match="amendments of a are not as this sqsdelay writes them"):
        parked.store.amendments(["a"])
    with pytest.raises(StoreError, match="amendments of a are not"):
        parked.store.amend([Amendment(message_id="a", at_ms=parked.clock.now_ms())])
    assert set(parked.store.amendments(["b"])) == {"b"}


def test_where_nothing_was_amended_a_batch_costs_one_request(parked: Parked) -> None:
    """Which most endpoints never do; and again once the last of them has expired."""
    store = parked.new_store()
    store.amendments(["a"])
    for _ in range(2):
        parked.s3.requests.clear()
        assert store.amendments([f"m{n}" for n in range(10)]) == {}
        assert parked.s3.requests == {"GetObject": 1}
        store.amend([Amendment(message_id="a", at_ms=parked.clock.now_ms())])
        assert set(store.amendments(["a", "b"])) == {"a"}
        parked.clock.advance(20 * 86_400)
