"""What a worker process of Spark's keeps for its tasks, one after another: client, sender, receipts, and the
pace that it shares with the others of its executor."""

from __future__ import annotations

import fcntl
import gc
import math
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from pyspark import SparkFiles, TaskContext

from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.errors import StoreUnavailable
from sqsdelay.ledger.files import FileLedger
from sqsdelay.parking.parking import ParkingSettings, check
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.spark.estimate import Planned
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.receipts import Before, Receipts
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.run import Attempt, insist
from sqsdelay.spark.sink.staging import Bulk
from sqsdelay.spark.sink.stored_job import Job, bucket_of
from sqsdelay.spark.sink.task import Task
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.curl import request_by_curl
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import open_store
from sqsdelay.stores.s3.bucket import ObjectBucket

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_ATTEMPTS: Final = 10
"""On one call: a task that is throttled has time."""


def sender_client(options: Options) -> SQSClient:
    """The client that the options ask for; raises ConfigurationError as `default_client` does."""
    return default_client(
        connections=options.concurrency,
        parameter_validation=False,  # the sender checks every value
        attempts=_ATTEMPTS,
        region=options.region,
        endpoint_url=options.endpoint_url,
    )


_BATCHES_BETWEEN_RECEIPTS: Final = 10
"""Times the batches in flight: so many that threads seldom wait for the last of them."""


class _UnsentQueues(SqsQueues):
    """Queues that are asked as for a send; what would be sent is taken for sent."""

    def send_batch(self, _: str, entries: Sequence[OutgoingMessage]) -> list[SendReceipt | Failure]:
        return [SendReceipt("not-sent") for _ in entries]


def _settings(options: Options) -> SenderSettings:
    return SenderSettings(
        hop_seconds=options.hop_seconds,
        max_delay_seconds=options.max_delay_seconds,
        concurrency=options.concurrency,
        idempotent=True,  # a task that is run again sends the same messages
        ledger=_ledger(options),
    )


@lru_cache(maxsize=1)
def _sender(options: Options) -> QueueSender:
    """This process's sender: Spark uses its Python workers for one task after another."""
    url, settings = options.store, _settings(options)
    if url is not None and not options.plan:
        # What a run stages never gets to this sender, which parks nothing then.
        after = options.max_delay_seconds if options.stages else options.park_after
        parking = ParkingSettings(lambda name: open_store(url, endpoint=name), after)
        settings = replace(settings, parking=parking)
    queues = _UnsentQueues if options.plan else SqsQueues
    return QueueSender(queues(_client(options), traced=True), settings)


@lru_cache(maxsize=10_000)
def check_store(options: Options, endpoint: str) -> None:
    """Raise what keeps a job from using an endpoint's store: before a row is sent, be it one that needs none.
    Once in a process."""
    url = str(options.store)
    with closing(open_store(url, endpoint=endpoint)) as store, suppress(StoreUnavailable):
        check(store)


def _ledger(options: Options) -> FileLedger | None:
    """This process's own file: a file system that is shared keeps lines of two of them not apart."""
    if options.ledger is None or options.plan:
        return None
    folder = Path(options.ledger)
    folder.mkdir(parents=True, exist_ok=True)
    return FileLedger(folder / f"{socket.gethostname()}-{os.getpid()}.jsonl")


_spare_the_collector: Final = cache(gc.freeze)
"""Let the garbage collector pass over what is loaded by now and stays: looking through pyspark's
and boto3's objects time and again is a twentieth of the work of a row. Once in a process."""

_FIRST_RATE: Final = 40.0
_GROWTH: Final = 0.05
_GROWTH_A_SECOND: Final = 8.0
"""Of the rate until a call is refused: what nobody holds up loses half a second, once."""

_CUT: Final = 0.8
_STEP: Final = 0.02
_PATIENT_CALLS: Final = 40
_CUT_SECONDS: Final = 0.1
"""Chosen in virtual time (`tests/unit/test_spark_task.py`): the fewest refusals at hardly a longer job."""

_LEAST_RATE: Final = 0.2
_MOST_RATE: Final = 1e6
_STALE_SECONDS: Final = 600.0

_STATE: Final = 5
_RATE, _LAST, _RECENT, _CUT_AT, _IDLE = range(_STATE)
"""Numbers in the file: calls a second; when the last call is made; calls of about the last second; when the
rate was cut, 0 before the first time; seconds since then in which nobody wanted to call."""

_PLACES: Final = 64  # That have numbers of their own: of more, some share them.


class CallPace:
    """Calls a second of one action on each queue and bucket, of the processes of one executor, which share a
    file and take turns. Thread-safe. SQS and S3 limit each by itself: a slow one does not hold up the others.

    None of them knows the quota, nor what others use of it. A refused call cuts the rate by a fifth, once for
    all calls that were on their way; who waits for his turn then waits for a later one. Then each call raises
    it, the more the longer none was refused, for then others have ended.
    """

    sleep: Callable[[float], None] = staticmethod(time.sleep)
    """Seconds; another one in virtual time."""

    def __init__(self, file: str | None = None, *, clock: Clock | None = None) -> None:
        self.refusals = 0
        self._clock = clock or SystemClock()
        self._turns = [threading.Lock() for _ in range(_PLACES)]
        self._on = threading.local()
        self._state = threading.Lock()
        self._file = -1 if file is None else os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        if file is not None:
            # What cannot be locked, or is full, is to be found out here.
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if os.fstat(self._file).st_size < 8 * _STATE * _PLACES:
                os.write(self._file, bytes(8 * _STATE * _PLACES))
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._shared = memoryview(mmap.mmap(self._file, 8 * _STATE * _PLACES)).cast("d")

    def keep(self, client: Any) -> None:
        """Let a client's calls keep it."""
        client.meta.events.register("provide-client-params", self.about)
        client.meta.events.register("before-send", self.wait)
        client.meta.events.register("needs-retry", self.answered)

    def about(self, *, params: Mapping[str, Any], event_name: str, **_: Any) -> None:
        """This thread's next calls are of that action, on that queue or bucket: botocore's event before each
        call."""
        on = f"{event_name} {params.get('QueueUrl', params.get('Bucket'))}"
        self._on.place = crc32(on.encode()) % _PLACES

    def wait(self, **_: Any) -> None:
        """Return when a call may be made: botocore's event before each attempt on one."""
        # One waits and the others queue up.
        with self._turns[self._place()]:
            cut_at = -1.0
            while cut_at != (cut_at := self.cut_at()):
                now = self._clock.monotonic()
                if (pause := self.turn(now) - now) > 0:
                    self.sleep(pause)

    def cut_at(self) -> float:
        """When the rate was cut, by the monotonic clock. Turns that were given before then count no more."""
        return self._shared[self._place() * _STATE + _CUT_AT]

    def turn(self, now: float) -> float:
        """When the next call may be made, by the monotonic clock, unless the rate is cut until then."""
        with self._locked(now) as state:
            rate = state[_RATE] or _FIRST_RATE
            due = state[_LAST] + 1 / rate
            at = max(now, due)
            state[_RECENT] = state[_RECENT] * math.exp(state[_LAST] - at) + 1
            if state[_CUT_AT]:
                state[_IDLE] += at - due
                calls = (at - state[_CUT_AT] - state[_IDLE]) * rate
                rate += _STEP / rate * (1 + (calls / _PATIENT_CALLS) ** 2)
            else:
                rate *= 1 + min(_GROWTH, _GROWTH_A_SECOND * (at - state[_LAST]))
            state[_RATE], state[_LAST] = min(rate, _MOST_RATE), at
            return at

    def answered(self, *, response: Any = None, **_: Any) -> None:
        """botocore's event after each attempt on a call."""
        if response is not None:
            self.refused(response[1].get("Error", {}).get("Code", ""))

    def refused(self, code: str) -> None:
        """A call was refused, with this error code. Source: SendMessageBatch API reference, Errors; Common
        Errors; S3 API reference, Error responses."""
        if "Throttl" not in code and code != "SlowDown":
            return
        now = self._clock.monotonic()
        with self._locked(now) as state:
            self.refusals += 1
            rate = state[_RATE] or _FIRST_RATE
            if state[_CUT_AT] and now < state[_CUT_AT] + _CUT_SECONDS + 1 / rate:
                return
            # Turns that are given and not taken count no more.
            while not state[_CUT_AT] and state[_LAST] > now:
                rate /= 1 + min(_GROWTH, _GROWTH_A_SECOND / rate)
                state[_RECENT] = (state[_RECENT] - 1) * math.exp(1 / rate)
                state[_LAST] -= 1 / rate
            if (ahead := min(1.0, state[_LAST] - now)) > 0:
                state[_RECENT] = max(1.0, rate + (state[_RECENT] - rate) * math.exp(ahead))
                state[_LAST] = now
            recent = state[_RECENT] * math.exp(state[_LAST] - now)
            most = max(2 * recent, rate / 2) if state[_CUT_AT] else _CUT * recent
            state[_RATE] = max(_LEAST_RATE, min(rate, most) * _CUT)
            state[_CUT_AT], state[_IDLE] = now, 0.0

    def _place(self) -> int:
        return int(getattr(self._on, "place", 0))

    @contextmanager
    def _locked(self, now: float) -> Iterator[memoryview[float]]:
        with self._state:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                at = self._place() * _STATE
                state = self._shared[at : at + _STATE]
                if state[_LAST] > now + _STALE_SECONDS:  # A clock's before the last start.
                    state[:] = memoryview(bytes(8 * _STATE)).cast("d")
                yield state
            finally:
                if self._file >= 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)


@cache
def pace() -> CallPace:
    """Of all calls of this executor: its processes have one folder, which Spark deletes. Where it cannot be
    written or locked, each has a pace of its own."""
    if TaskContext.get() is not None:
        with suppress(OSError):
            return CallPace(f"{SparkFiles.getRootDirectory()}/sqsdelay-pace")
    return CallPace()


def task_of(rows: Rows, attempt: Attempt) -> Task:
    options = rows.options
    # The next micro-batch has the same sender.
    kept = replace(options, batch=None, summary=None)
    sender = _sender(kept)
    _spare_the_collector()
    receipts = None if options.receipts is None else Receipts.of(options)
    url = str(options.store)
    job = Job(url, rows.run, _bucket(url)) if options.stages else None
    before = sent_before(receipts, job, options, attempt)
    task = Task(rows=rows, sender=sender, before=before)
    slices, staged = list[int](), None
    if receipts is not None and not options.plan:
        task.stopped = receipts.stopped
        task.receipts = receipts.writer(attempt, options.parts)
        staged = receipts.staging(attempt)
        slices.append(options.concurrency * MAX_BATCH_ENTRIES * _BATCHES_BETWEEN_RECEIPTS)
    if options.plan:
        task.planned = Planned(options, attempt.began_ms)
    elif options.rate is not None:
        task.rate = options.rate / (options.tasks or 1)
        slices.append(max(MAX_BATCH_ENTRIES, int(task.rate)))
    task.slice_rows = min(slices, default=None)
    if job is not None:
        name = f"{attempt.partition}x{attempt.task_id}"
        queues, settings = SqsQueues(_client(kept)), _settings(options)
        task.bulk = Bulk(rows, job, queues, name, staged, settings, before)
        task.check_store = task.bulk.place
    elif options.store is not None and not options.plan:
        task.check_store = partial(check_store, kept)
    return task


@lru_cache(maxsize=1)
def _bucket(url: str) -> ObjectBucket:
    bucket = bucket_of(url)
    pace().keep(bucket.client)
    return bucket


@lru_cache(maxsize=1)
def _client(options: Options) -> SQSClient:
    client = sender_client(options)
    pace().keep(client)
    request_by_curl(client, pace())
    return client


_loaded: dict[object, Before] = {}


def sent_before(
    receipts: Receipts | None, job: Job | None, options: Options, attempt: Attempt
) -> Before:
    """A task's share. Of rows that come in any order, all of it, read once for a process and a run, and
    again for an attempt that follows a failed one."""
    share = attempt.partition if options.parts > 1 else 0, options.parts
    own = attempt if attempt.number or options.parts > 1 else None
    # A micro-batch that is run again keeps its name.
    key = options, attempt.write_id, attempt.began_ms, own
    if key not in _loaded:
        _loaded.clear()  # Before others are read: not both are in memory.
        before = Before()
        if receipts is not None:
            before.sent = receipts.load(*share)
        if options.replay is not None:
            # No run of the job goes on meanwhile.
            before.original = Receipts(str(options.receipts), str(options.job)).load(*share)
        if job is not None:
            before.known, before.stored = insist(partial(job.stored, *share), options.retry_seconds)
        _loaded[key] = before
    return _loaded[key]
