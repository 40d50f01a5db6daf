"""The S3 store where the contract does not look: what others left in the bucket, and what is refused."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config

from sqsdelay.core.delay import utc
from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.errors import ConfigurationError, SchemaMismatch, StoreUnavailable
from sqsdelay.ports.stores import TransactionMode
from sqsdelay.stores import S3Store, open_store
from sqsdelay.stores.s3.bucket import ObjectBucket
from sqsdelay.stores.s3.layout import MONTH, ObjectName, Slot
from sqsdelay.testing import ManualClock
from tests.messages import a_message
from tests.services.in_memory_s3 import InMemoryS3
from tests.services.network import serving

DAY_MS = 86_400_000


@pytest.fixture
def s3() -> InMemoryS3:
    return InMemoryS3()


@pytest.fixture
def store(s3: InMemoryS3, clock: ManualClock) -> S3Store:
    client: Any = s3
    return S3Store("parked", endpoint="orders", prefix="delays", client=client, clock=clock)


def message(due_ms: int, message_id: str | None = None) -> StoredMessage:
    name = message_id or new_message_id(due_ms)
    return a_message(name, due_ms)


def objects(s3: InMemoryS3) -> list[str]:
    return sorted(key for key in s3.objects if key.endswith(".jsonl.gz"))


def released(store: S3Store, clock: ManualClock) -> list[str]:
    """Claimed and removed, until nothing is due."""
    found: list[str] = []
    while True:
        with store.claim(100, due_by_ms=clock.now_ms()) as claim:
            ids = [each.message_id for each in claim.messages]
            claim.remove(ids)
        if not ids:
            return found
        found += ids


def test_a_body_on_its_way_does_not_set_the_clock_back() -> None:
    """S3 dates its answer before half a minute of body: leases end by that clock."""
    passed = [0.0]

    class Body:
        def read(self) -> bytes:
            passed[0] += 30
            return b""

    headers = {"date": "Tue, 01 Jan 2030 00:00:00 GMT"}
    answer = {"Body": Body(), "ETag": "", "ResponseMetadata": {"HTTPHeaders": headers}}
    client: Any = SimpleNamespace(get_object=lambda **_: answer)
    bucket = ObjectBucket("parked", client, None)
    bucket.clock.monotonic = lambda: passed[0]
    bucket.get("key")
    assert utc(bucket.clock.now_ms()) == datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC)


def test_a_year_of_due_times_is_an_object_a_slot(
    store: S3Store, s3: InMemoryS3, clock: ManualClock
) -> None:
    """Coarse slots for what is far away; the names sort by due time."""
    now = clock.now_ms()
    store.store([message(now + n * DAY_MS) for n in range(360)])
    assert 12 <= len(objects(s3)) <= 12 + 31
    firsts = [key.split("/")[-1].split("-")[0] for key in objects(s3)]
    assert firsts == sorted(firsts)


def test_a_refusal_that_breaks_off_is_one_of_a_bucket_out_of_reach() -> None:
    """A state that is not there is a 404 with a body; so is a job's record at its first run."""

    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "99")
            self.end_headers()
            self.wfile.write(b"<Error>")

    with serving(Broken) as url:
        client = boto3.client("s3", endpoint_url=url, config=Config(proxies={}))
        with pytest.raises(StoreUnavailable, match="cannot be used now"):
            ObjectBucket("parked", client, None).get("key")


@pytest.mark.parametrize("left", [20, 0])
def test_an_unreadable_object_is_passed_over_and_stays(
    store: S3Store, s3: InMemoryS3, clock: ManualClock, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    """Half of an upload, nothing of it, or what somebody put there: told once; the others are released."""
    store.store([message(clock.now_ms() - 1, "broken")])
    (broken,) = objects(s3)
    s3.objects[broken] = s3.objects[broken][:left]
    store.store([message(clock.now_ms(), "well")])
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        released(store, clock)
    assert released(store, clock) == ["well"]
    assert broken in s3.objects
    assert "cannot be read" in caplog.text


def test_a_line_that_is_no_message_is_one_that_cannot_be_sent(
    store: S3Store, s3: InMemoryS3, clock: ManualClock
) -> None:
    """Written by hand: the dispatcher gets it as unreadable, and rejects it."""
    store.store([message(clock.now_ms(), "a")])
    (key,) = objects(s3)
    s3.objects[key] = gzip.compress(b'{"due_ms": 5}\nnonsense\n')
    for _ in range(2):  # neither has an id, and a claim is settled by ids
        with store.claim(10, due_by_ms=clock.now_ms()) as claim:
            assert [bool(each.unreadable) for each in claim.messages] == [True]
            assert claim.remove([each.message_id for each in claim.messages]) == [True]
    assert store.pending_count() == 0


def test_what_is_kept_in_memory_is_counted_once(
    store: S3Store, s3: InMemoryS3, clock: ManualClock
) -> None:
    """Two threads that read one object at a time: else less and less would be kept."""
    wheel, get = store._wheel, s3.get_object
    store.store([message(clock.now_ms())])
    (name,) = (each.name for each in wheel.listed())

    def another(**given: str) -> object:
        s3.get_object = get  # type: ignore[method-assign]
        wheel.lines(name)
        return get(**given)

    s3.get_object = another  # type: ignore[method-assign,assignment]
    wheel.lines(name)
    wheel.forget(name)
    assert wheel._kept_bytes == 0


def test_stored_twice_for_one_due_time_is_merged_to_one(
    store: S3Store, s3: InMemoryS3, clock: ManualClock
) -> None:
    """A worker that was killed between PUT and delete parks its group again."""
    twice = message(clock.now_ms() + 3 * DAY_MS)
    for n in range(4):
        store.store([twice, message(twice.due_ms + n)])
    assert len(objects(s3)) == 4
    clock.advance(3 * 86_400 - 700)
    assert released(store, clock) == []
    assert len(objects(s3)) == 1
    clock.advance(701)
    assert released(store, clock).count(twice.message_id) == 1
    assert objects(s3) == []


def test_a_cancelled_one_is_gone_through_a_merge(
    store: S3Store, s3: InMemoryS3, clock: ManualClock
) -> None:
    """Tombstones are read before messages are written anew."""
    messages = [message(clock.now_ms() + 3 * DAY_MS + n) for n in range(5)]
    for each in messages:
        store.store([each])
    assert store.cancel([messages[2].message_id]) == [True]
    clock.advance(3 * 86_400 + 1)
    assert released(store, clock) == [m.message_id for m in messages if m is not messages[2]]


def test_a_message_that_is_moved_keeps_all_its_failures(store: S3Store, clock: ManualClock) -> None:
    """Those counted before it was moved the first time, too."""
    mine = message(clock.now_ms())
    store.store([mine])
    for moves in range(1, 4):
        with store.claim(1, due_by_ms=clock.now_ms()) as claim:
            claim.count_failures([mine.message_id], retry_after_seconds=0)
        clock.advance(1)
        assert store.reschedule(mine.message_id, clock.now_ms())
        found = store.find(mine.message_id)
        assert found is not None
        assert found.failures == moves


def test_an_id_that_tells_nothing_is_refused_and_told_why(store: S3Store) -> None:
    """Without look-up objects nobody knows where it lies."""
    with pytest.raises(ConfigurationError, match="lookup=on"):
        store.cancel(["order-7"])


def test_what_does_not_fit_is_refused_at_once(store: S3Store, s3: InMemoryS3) -> None:
    """Exactly once, a transaction, another URL."""
    with pytest.raises(ConfigurationError, match="cannot give"):
        store.initialize(TransactionMode.EXACTLY_ONCE)
    with pytest.raises(ConfigurationError, match="transaction"):
        store.store([], transaction=object())
    for url in ("s3://UPPER/x", "s3://bucket/x?lookup=maybe", "s3://bucket?slots=60:7"):
        with pytest.raises(ConfigurationError):
            open_store(url, endpoint="orders")


@pytest.mark.parametrize("version", ["v2", "v10"])
@pytest.mark.parametrize("lookup", [False, True])
def test_what_another_version_wrote_is_refused_at_once(
    s3: InMemoryS3, clock: ManualClock, version: str, lookup: bool
) -> None:
    """By whatever opens the store, before it writes anything; of its own ids and of the user's."""
    client: Any = s3
    s3.objects[f"delays/orders/{version}/x"] = b""
    known = "order-7" if lookup else new_message_id(1)
    uses: list[Callable[[S3Store], object]] = [
        lambda store: store.set_up(),
        lambda store: store.initialize(TransactionMode.AT_LEAST_ONCE),
        lambda store: store.store([message(1, known)]),
        lambda store: store.pending(1),
        lambda store: store.pending_count(),
        lambda store: store.next_due_ms(),
        lambda store: store.find(known),
        lambda store: store.cancel([known]),
        lambda store: store.reschedule(known, 2),
        lambda store: store.amendments(["x"]),
        lambda store: store.amend([Amendment(message_id="x", at_ms=1)]),
        lambda store: store.claim(1, due_by_ms=1).__enter__(),
    ]
    given: Any = {"prefix": "delays", "lookup": lookup, "client": client, "clock": clock}
    for use in uses:
        told = f"prefix parked/delays/orders/ .* it has delays/orders/{version}/x, .* name another prefix"
        with pytest.raises(SchemaMismatch, match=told):
            use(S3Store("parked", endpoint="orders", **given))
    assert len(s3.objects) == 1


def test_what_is_not_near_costs_a_dispatcher_nothing(clock: ManualClock) -> None:
    """A billion messages in 200,000 objects of later months are not listed, beyond the page that what is
    near is on: a day of turns and releases makes the requests that it makes without them."""
    begun_ms = clock.now_ms()
    far_ms = (begun_ms // (30 * DAY_MS) + 3) * 30 * DAY_MS
    asked: list[Counter[str]] = []
    for waiting in (0, 3_000):
        time, s3 = ManualClock(begun_ms), InMemoryS3(page=100)
        client: Any = s3
        store = S3Store("parked", endpoint="orders", client=client, clock=time)
        for n in range(waiting):
            name = ObjectName(Slot.of(far_ms, MONTH), far_ms + n, far_ms + n, 5_000, 999, f"{n}")
            s3.objects[f"orders/v1/{name.path()}"] = b""
        store.store([message(begun_ms + 3_600_000 * n) for n in range(24)])
        found: list[str] = []
        while time.now_ms() < begun_ms + DAY_MS:
            found += released(store, time)
            time.advance(600)
        assert len(found) == 24
        store.close()
        asked.append(s3.requests)
    none, many = asked
    assert many - none == Counter()
