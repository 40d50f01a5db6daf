"""What several attempts and runs of a job have staged counts once, whatever breaks."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import StoreUnavailable
from sqsdelay.spark.sink.run import JOB_SECONDS, Run, Staged, new_job_batch
from sqsdelay.spark.sink.stored_job import Job
from sqsdelay.stores.s3 import S3Store
from sqsdelay.stores.s3.bucket import ObjectBucket
from sqsdelay.stores.s3.layout import Hierarchy, ObjectName, line_of, packed, parse, size_of
from sqsdelay.stores.s3.wheel import Wheel
from sqsdelay.testing import ManualClock
from tests.services.in_memory_s3 import InMemoryS3

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


class Killed(BaseException):
    """The process is gone."""


class Bucket:
    """One bucket, its clock, and those who use it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.objects: dict[str, bytes] = {}
        self.start_ms = self.clock.now_ms()

    def client(self, around: Callable[[str, Callable[[], Any]], Any] | None = None) -> Any:
        return InMemoryS3(self.objects, around=around)

    def wheel(self, client: Any = None) -> Wheel:
        bucket = ObjectBucket("parked", client or self.client(), self.clock)
        return Wheel(bucket, "orders", prefix="delays/", hierarchy=Hierarchy())

    def store(self, client: Any = None) -> S3Store:
        client = client or self.client()
        return S3Store(
            "parked", endpoint="orders", prefix="delays", client=client, clock=self.clock
        )

    def pending(self) -> list[str]:
        return [each.message_id for each in self.store().pending(1000)]

    def released(self) -> list[str]:
        """What a dispatcher gets once all is due."""
        self.clock.advance((self.start_ms + WEEK_MS + 60_000 - self.clock.now_ms()) / 1000)
        store, found = self.store(), list[str]()
        while True:
            with store.claim(100, due_by_ms=self.clock.now_ms()) as claim:
                ids = [each.message_id for each in claim.messages]
                claim.remove(ids)
            if not ids:
                return sorted(found)
            found += ids

    def staged(
        self, wheel: Wheel, batch: str, attempt: str, *ids: int, name: str | None = "j"
    ) -> Staged:
        """What a task does: objects, marks, a report."""
        known, before, _ = Job(wheel, name).stored()
        new = [n for n in ids if n not in before]
        due_ms = self.start_ms + WEEK_MS
        run = Run(batch=batch, job=name, now_ms=self.clock.now_ms(), after_ms=0)
        if not new:
            return Staged("orders", run, attempt, 0, 0, 0, known)
        lines = [
            line_of(
                StoredMessage(message_id=f"m{n}", destination="orders", due_ms=due_ms, body=b"x")
            )
            for n in new
        ]
        slot = wheel.hierarchy.slot(due_ms, self.clock.now_ms())
        object_name = ObjectName(
            slot, due_ms, due_ms, len(lines), size_of(lines), f"{attempt}.0", batch
        )
        key = wheel.key(object_name)
        wheel.bucket.put(key, packed(lines))
        Job(wheel, name).mark(batch, attempt, array("q", new), array("q", new))
        return Staged("orders", run, attempt, len(new), sum(new), due_ms, known)

    def commit(self, wheel: Wheel, *staged: Staged) -> bool:
        """What a driver does; False where another run has stored the same."""
        job = Job(wheel, staged[0].run.job)
        new = job.note(staged, parts=1, endpoints=[])
        if new:
            attempts = {"orders": [each.attempt for each in staged]}
            job.decide(staged[0].run.batch, attempts, for_all=False)
        return new


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_only_what_the_committed_attempts_staged_counts(bucket: Bucket) -> None:
    """A retried task and a speculative one have written twice; before the commit nothing counts."""
    wheel = bucket.wheel()
    batch = new_job_batch(bucket.clock.now_ms())
    first = bucket.staged(wheel, batch, "0x1", 1, 2)
    bucket.staged(wheel, batch, "0x3", 1, 2)
    second = bucket.staged(wheel, batch, "1x2", 3)
    assert bucket.pending() == []
    assert bucket.commit(wheel, first, second)
    assert bucket.pending() == ["m1", "m2", "m3"]
    assert bucket.released() == ["m1", "m2", "m3"]
    assert not [key for key in bucket.objects if "/v1/" in key]


def test_a_job_run_again_knows_what_it_has_stored(bucket: Bucket) -> None:
    """And stores the rest, though another process runs it."""
    for attempt, ids in (("0x1", (1, 2)), ("0x9", (1, 2, 3))):
        wheel = bucket.wheel()
        batch = new_job_batch(bucket.clock.now_ms())
        assert bucket.commit(wheel, bucket.staged(wheel, batch, attempt, *ids))
    assert bucket.released() == ["m1", "m2", "m3"]


def test_other_jobs_do_not_know(bucket: Bucket) -> None:
    """A job of another name, and one without a name, store the same ids again."""
    for name in ("j", "k", None, None):
        wheel = bucket.wheel()
        batch = new_job_batch(bucket.clock.now_ms())
        assert bucket.commit(wheel, bucket.staged(wheel, batch, "0x1", 1, name=name))
    assert bucket.store().pending_count() == 4


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("answered", [False, True])
def test_killed_at_any_step_of_its_commit_and_run_again(
    bucket: Bucket, step: int, answered: bool
) -> None:
    """Each message is there once: the next run finishes the commit, or does it anew."""
    calls = 0

    def dying(_: str, call: Callable[[], Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == step + 1 and not answered:
            raise Killed
        done = call()
        if calls == step + 1:
            raise Killed
        return done

    batch = new_job_batch(bucket.clock.now_ms())
    staged = bucket.staged(bucket.wheel(), batch, "0x1", 1, 2)
    with suppress(Killed):
        bucket.commit(bucket.wheel(bucket.client(dying)), staged)
    bucket.clock.advance(2 * JOB_SECONDS)
    bucket.store().pending(10)  # A reader may give up what was not committed.
    wheel = bucket.wheel()
    again = new_job_batch(bucket.clock.now_ms())
    more = bucket.staged(wheel, again, "0x5", 1, 2)
    if more.messages:
        assert bucket.commit(wheel, more)
    assert bucket.released() == ["m1", "m2"]


def test_two_runs_at_once_with_one_name(bucket: Bucket) -> None:
    """Of the same messages one run's count; of others the later run is told to begin anew."""
    wheels = [bucket.wheel() for _ in range(3)]
    batches = [new_job_batch(bucket.clock.now_ms()) for _ in range(3)]
    one, same, other = (
        bucket.staged(wheel, batch, "0x1", *ids)
        for wheel, batch, ids in zip(wheels, batches, ((1, 2), (1, 2), (2, 3)), strict=True)
    )
    assert bucket.commit(wheels[0], one)
    assert not bucket.commit(wheels[1], same)
    with pytest.raises(StoreUnavailable, match="at the same time; none of this run's"):
        bucket.commit(wheels[2], other)
    again = new_job_batch(bucket.clock.now_ms())
    assert bucket.commit(wheels[2], bucket.staged(wheels[2], again, "0x8", 2, 3))
    assert bucket.released() == ["m1", "m2", "m3"]


def test_a_job_that_took_too_long_is_told(bucket: Bucket) -> None:
    """What others have given up and deleted cannot be committed."""
    wheel = bucket.wheel()
    batch = new_job_batch(bucket.clock.now_ms())
    staged = bucket.staged(wheel, batch, "0x1", 1)
    bucket.clock.advance(JOB_SECONDS - 60)
    assert bucket.pending() == []
    assert any("/v1/" in key for key in bucket.objects)
    bucket.clock.advance(120)
    assert bucket.pending() == []
    assert not any("/v1/" in key for key in bucket.objects)
    with pytest.raises(StoreUnavailable, match="run it again"):
        bucket.commit(bucket.wheel(), staged)


def test_a_commit_at_the_last_moment_counts_for_all(bucket: Bucket) -> None:
    """It comes between what a reader finds, no decision, and what he writes, that the job is given up."""
    batch = new_job_batch(bucket.clock.now_ms())
    staged = bucket.staged(bucket.wheel(), batch, "0x1", 1)
    bucket.clock.advance(JOB_SECONDS + 60)
    writes = iter(range(10))

    def late(name: str, call: Callable[[], Any]) -> Any:
        if name == "PutObject" and next(writes) == 1:
            assert bucket.commit(bucket.wheel(), staged)
        return call()

    found = bucket.store(bucket.client(late)).pending(10)
    assert [each.message_id for each in found] == bucket.pending() == ["m1"]


def test_what_a_failed_job_has_staged_goes(bucket: Bucket) -> None:
    """At once, that of attempts too which its driver was told nothing of; another run's stays."""
    wheel = bucket.wheel()
    batch = new_job_batch(bucket.clock.now_ms())
    bucket.staged(wheel, batch, "0x1", 1)
    bucket.staged(wheel, batch, "0x2", 1)
    Job(wheel, "j").abort(batch)
    assert [key.split("/")[2] for key in bucket.objects] == ["decided"]
    other = new_job_batch(bucket.clock.now_ms())
    assert bucket.commit(wheel, bucket.staged(wheel, other, "0x1", 1))
    Job(wheel, "j").abort(batch)
    assert bucket.pending() == ["m1"]


def test_what_does_not_count_hides_nothing_behind_it(bucket: Bucket) -> None:
    """An attempt's leftovers in the first slot, a year of committed messages behind it: a dispatcher that
    sweeps finds only the former, and forgets no decision."""
    wheel = bucket.wheel()
    batch = new_job_batch(bucket.clock.now_ms())
    staged = bucket.staged(wheel, batch, "0x1", 1)
    (key,) = [key for key in bucket.objects if "/v1/" in key]
    name, _ = parse(key.removeprefix("delays/orders/v1/")) or pytest.fail("no name")
    left = replace(name, slot=wheel.hierarchy.slot(bucket.start_ms + DAY_MS, 0), part="0x2.0")
    wheel.bucket.put(wheel.key(left), b"")
    bucket.commit(wheel, staged)
    bucket.clock.advance(3 * 86_400)
    with bucket.store().claim(1, due_by_ms=bucket.clock.now_ms()):
        pass
    assert bucket.released() == ["m1"]


def test_jobs_are_forgotten_when_nothing_of_them_waits(bucket: Bucket) -> None:
    """A day after their last message was due; until then they are known."""
    wheel = bucket.wheel()
    batch = new_job_batch(bucket.clock.now_ms())
    bucket.commit(wheel, bucket.staged(wheel, batch, "0x1", 1))
    lost = new_job_batch(bucket.clock.now_ms())
    bucket.staged(wheel, lost, "0x7", 2)
    assert bucket.released() == ["m1"]
    assert any(key.endswith("record.json") for key in bucket.objects)
    for _ in range(3):
        bucket.clock.advance(2 * 86_400)
        with bucket.store().claim(1, due_by_ms=bucket.clock.now_ms()):
            pass
    kept = [key for key in bucket.objects if lost not in key]
    assert kept == []
