"""What a worker process of Spark's keeps for its tasks, one after another: client, sender, receipts."""

from __future__ import annotations

import gc
import os
import socket
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from pyspark import SparkFiles, TaskContext

from sqsdelay.ledger.files import FileLedger
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.ports.queues import Queues
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.spark.estimate import Planned, UnsentQueues
from sqsdelay.spark.sink.bulk import Bulk
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.pace import CallPace
from sqsdelay.spark.sink.receipts import Receipts, SentBefore
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.run import Attempt, Run, run_of
from sqsdelay.spark.sink.stored_job import wheel_of
from sqsdelay.spark.sink.task import Task
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.curl import request_by_curl
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.sqs.sender import DelaySender
from sqsdelay.stores import open_store

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

_NEVER: Final = 10**10
"""Seconds, above any delay."""


@lru_cache(maxsize=1)
def _sender(options: Options) -> QueueSender:
    """This process's sender: Spark uses its Python workers for one task after another."""
    client = _client(options)
    url = options.store
    if options.plan:
        queues = UnsentQueues(SqsQueues(client))
        settings = SenderSettings(
            hop_seconds=options.hop_seconds, max_delay_seconds=options.max_delay_seconds
        )
        return QueueSender(cast(Queues, queues), settings)
    return DelaySender(
        client,
        hop_seconds=options.hop_seconds,
        max_delay_seconds=options.max_delay_seconds,
        concurrency=options.concurrency,
        idempotent=True,  # a task that is run again sends the same messages
        store=None if url is None else lambda name: open_store(url, endpoint=name),
        # What a run stages never gets to this sender.
        park_after_seconds=_NEVER if run_of(options, 0) else options.park_after,
        ledger=_ledger(options),
    )


def _ledger(options: Options) -> FileLedger | None:
    """This process's own file: a file system that is shared keeps lines of two of them not apart."""
    if options.ledger is None:
        return None
    folder = Path(options.ledger)
    folder.mkdir(parents=True, exist_ok=True)
    return FileLedger(folder / f"{socket.gethostname()}-{os.getpid()}.jsonl")


@cache
def _spare_the_collector() -> None:
    """Let the garbage collector pass over what is loaded by now and stays: looking through pyspark's
    and boto3's objects time and again is a twentieth of the work of a row. Once in a process."""
    gc.freeze()


@cache
def pace() -> CallPace:
    """Of all calls of this executor: its processes have one folder, which Spark deletes."""
    in_task = TaskContext.get() is not None
    return CallPace(f"{SparkFiles.getRootDirectory()}/sqsdelay-pace" if in_task else None)


def task_of(rows: Rows, attempt: Attempt, now_ms: int, run: Run | None = None) -> Task:
    """A task of this process, of a ``run`` if its job stages rows in an S3 store."""
    options = rows.options
    _spare_the_collector()
    task = Task(rows=rows, sender=_sender(options), retry_seconds=options.retry_seconds)
    slices = []
    staged_receipts = None
    if options.receipts is not None:
        job, replay = str(options.job), options.replay
        receipts = Receipts(options.receipts, job, batch=attempt.batch, replay=replay)
        task.sent_before = sent_before(receipts, options, attempt, now_ms)
        if replay is not None:
            # No run of the job goes on meanwhile.
            before = Receipts(options.receipts, job)
            task.original = before.load(attempt.partition, attempt.parts)
        if not options.plan:
            task.stopped, task.receipts = receipts.stopped, receipts.writer(attempt.file_name)
        staged_receipts = None if run is None else receipts.staging(attempt.file_name)
        slices.append(options.concurrency * MAX_BATCH_ENTRIES * _BATCHES_BETWEEN_RECEIPTS)
    if options.plan:
        task.planned = Planned(options, now_ms)
    elif options.rate is not None:
        task.rate = options.rate / (options.tasks or 1)
        slices.append(max(MAX_BATCH_ENTRIES, int(task.rate)))
    task.slice_rows = min(slices, default=None)
    if run is not None:
        task.bulk = Bulk(
            rows,
            run,
            SqsQueues(_client(options)),
            attempt=f"{attempt.partition}x{attempt.task_id}",
            receipts=staged_receipts,
            ledger=_ledger(options),
            sent_before=task.sent_before,
            open_wheel=_wheel,
        )
    return task


_wheel = lru_cache(maxsize=64)(wheel_of)


@lru_cache(maxsize=1)
def _client(options: Options) -> SQSClient:
    client = sender_client(options)
    client.meta.events.register("before-send.sqs", pace().wait)
    client.meta.events.register("needs-retry.sqs", pace().answered)
    request_by_curl(client, before=pace().wait, refused=pace().refused)
    return client


_loaded: dict[object, SentBefore] = {}


def sent_before(
    receipts: Receipts, options: Options, attempt: Attempt, began_ms: int
) -> SentBefore:
    """A task's share. Of rows that come in any order, all of it, read once for a process and a run, and
    again for an attempt that follows a failed one."""
    if attempt.parts > 1:
        return receipts.load(attempt.partition, attempt.parts)
    # A micro-batch that is run again keeps its name.
    retry = attempt.task_id if attempt.number else None
    key = (options, attempt.write_id, began_ms, retry)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = receipts.load()
    return _loaded[key]
