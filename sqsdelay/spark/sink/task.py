"""One attempt on one task: its rows sent in full batches, or kept with the reason."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import tenacity

from sqsdelay.core.clock import Clock, SystemClock
from sqsdelay.core.message import Message
from sqsdelay.errors import ConfigurationError, QueueUnavailable, SendFailed, SqsDelayError
from sqsdelay.ledger.file import FileLedger
from sqsdelay.sending.sender import QueueSender, SendResult
from sqsdelay.spark.sink.options import Options
from sqsdelay.spark.sink.rejects import rejected
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.summary import Counts
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.sender import DelaySender

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Rows read as messages at a time, so that a batch of large bodies is not in memory twice."""

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_ATTEMPTS: Final = 10
"""On one call: a task that is throttled has time."""

_RETRY_WAIT: Final = tenacity.wait_random_exponential(multiplier=0.5, max=10)
_Waiting = list[tuple[int, Message]]


class Task:
    """Sends the rows of one task.

    Args:
        rows: how to read them.
        sender: what sends them.
        retry_seconds: how long rows that may be taken later are sent again while none is taken.
        clock: the local clock.
        sleep: how to wait so many seconds.
    """

    def __init__(
        self,
        rows: Rows,
        sender: QueueSender,
        *,
        retry_seconds: int,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rows = rows
        self._sender = sender
        self._retry_seconds = retry_seconds
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._progress_at = 0.0
        self.counts = Counts()

    def send(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send all rows; yields those that cannot be sent, each with its reason.

        Raises:
            QueueUnavailable: SQS did not take some rows for ``retry_seconds``.
            ConfigurationError: something that no row is to blame for.
        """
        for batch in batches:
            for chunk in chunks(batch):
                errors = self._send_chunk(chunk)
                if errors:
                    positions = sorted(errors)
                    yield rejected(chunk, positions, [str(errors[row]) for row in positions])

    def _send_chunk(self, chunk: pa.RecordBatch) -> dict[int, SqsDelayError]:
        errors: dict[int, SqsDelayError] = {}
        by_endpoint: dict[str, _Waiting] = {}
        for row, (endpoint, message) in enumerate(self._rows.read(chunk)):
            if isinstance(message, SqsDelayError):
                errors[row] = message
            else:
                by_endpoint.setdefault(endpoint, []).append((row, message))
        for endpoint, waiting in by_endpoint.items():
            errors.update(self._send_waiting(endpoint, waiting))
        for error in errors.values():
            self.counts.count_rejected(error)
        return errors

    def _send_waiting(self, endpoint: str, waiting: _Waiting) -> dict[int, SqsDelayError]:
        """Send rows to one endpoint; those that may be taken later, again until they are.

        Failing the task instead would send all its other rows again too.
        """
        errors: dict[int, SqsDelayError] = {}
        self._progress_at = self._clock.monotonic()
        for attempt in tenacity.Retrying(
            stop=self._out_of_patience,
            wait=_RETRY_WAIT,
            sleep=self._sleep,
            retry=tenacity.retry_if_exception_type(QueueUnavailable),
            reraise=True,
        ):
            with attempt:
                later = self._send_once(endpoint, waiting, errors)
                if len(later) < len(waiting):
                    self._progress_at = self._clock.monotonic()
                waiting = [waiting[position] for position, _ in later]
                if later:
                    raise QueueUnavailable(
                        f"{len(later)} rows for {endpoint} were not taken, and for the "
                        f"{self._retry_seconds} s of option retry_seconds none was: {later[0][1]}"
                    )
        return errors

    def _out_of_patience(self, _: tenacity.RetryCallState) -> bool:
        return self._clock.monotonic() - self._progress_at >= self._retry_seconds

    def _send_once(
        self, endpoint: str, waiting: _Waiting, errors: dict[int, SqsDelayError]
    ) -> list[tuple[int, SqsDelayError]]:
        """Send; notes what cannot be sent in ``errors``, returns which may be later and why not now."""
        try:
            results = self._sender.send_many(endpoint, [message for _, message in waiting])
        except SqsDelayError as error:
            results = [SendResult(error=error)] * len(waiting)
        later: list[tuple[int, SqsDelayError]] = []
        for position, ((row, _), result) in enumerate(zip(waiting, results, strict=True)):
            if result.error is None:
                self.counts.count_sent(result)
            elif isinstance(result.error, ConfigurationError):
                raise result.error
            elif _may_pass(result.error):
                later.append((position, result.error))
            else:
                errors[row] = result.error
        return later


def _may_pass(error: SqsDelayError) -> bool:
    if isinstance(error, SendFailed):
        return error.transient
    return isinstance(error, QueueUnavailable)


def chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about `CHUNK_BYTES`, of at least one row."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, CHUNK_BYTES))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def sender_client(options: Options) -> SQSClient:
    """The client that the options ask for; raises ConfigurationError as `default_client` does."""
    return default_client(
        connections=options.concurrency,
        parameter_validation=False,  # the sender checks every value
        paced=True,
        attempts=_ATTEMPTS,
        region=options.region,
        endpoint_url=options.endpoint_url,
    )


@lru_cache(maxsize=1)
def _sender(options: Options) -> DelaySender:
    """This process's sender: Spark uses its Python workers for one task after another."""
    return DelaySender(
        sender_client(options),
        hop_seconds=options.hop_seconds,
        concurrency=options.concurrency,
        idempotent=True,  # a task that is run again sends the same messages
        ledger=None if options.ledger is None else _ledger(Path(options.ledger)),
    )


def _ledger(folder: Path) -> FileLedger:
    """This process's own file: a file system that is shared keeps lines of two of them not apart."""
    folder.mkdir(parents=True, exist_ok=True)
    return FileLedger(folder / f"{socket.gethostname()}-{os.getpid()}.jsonl")


@cache
def _spare_the_collector() -> None:
    """Let the garbage collector pass over what is loaded by now and stays: looking through pyspark's
    and boto3's objects time and again is a twentieth of the work of a row. Once in a process."""
    gc.freeze()


def task_of(rows: Rows) -> Task:
    """A task of this process."""
    sender = _sender(rows.options)
    _spare_the_collector()
    return Task(rows, sender, retry_seconds=rows.options.retry_seconds)
