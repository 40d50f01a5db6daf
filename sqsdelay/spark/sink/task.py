"""One task's rows, sent in full batches at a pace, and sent again until they are taken."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import pyarrow as pa

from sqsdelay import errors
from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, Route, checked
from sqsdelay.core.stored_message import as_stored
from sqsdelay.sending.sender import QueueSender, SendResult
from sqsdelay.spark.estimate import Planned
from sqsdelay.spark.sink.receipts import Before, Mark, ReceiptsWriter, noted
from sqsdelay.spark.sink.rows import Rows
from sqsdelay.spark.sink.run import LONGEST_WAIT, Counts, Staged
from sqsdelay.spark.sink.staging import Bulk

CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Rows read as messages at a time, so that a batch of large bodies is not in memory twice."""

_OF_NO_ROW: Final = (errors.ConfigurationError, errors.SchemaMismatch, errors.StoreMissing)
"""Errors that no row is to blame for."""

_Row = tuple[int, Message, Mark]
_Waiting = list[_Row]
_Failed = dict[int, errors.SqsDelayError]


@dataclass(kw_only=True)
class Task:
    """Sends the rows of one task. What earlier runs of the job have sent ``before`` is not sent again; of a
    replay, a row that is another by now is rejected. The sender gets ``slice_rows`` at a time. ``rate`` is
    messages a second; ``planned`` sums up a plan; ``bulk`` stages rows due far ahead; ``check_store`` is
    asked for each endpoint before it is sent to."""

    rows: Rows
    sender: QueueSender
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], None] = time.sleep
    before: Before = field(default_factory=Before)
    receipts: ReceiptsWriter | None = None
    slice_rows: int | None = None
    rate: float | None = None
    planned: Planned | None = None
    bulk: Bulk | None = None
    check_store: Callable[[str], object] = bool
    stopped: Callable[[], bool] = bool

    def __post_init__(self) -> None:
        self._free_at = self.clock.monotonic()
        self._seen = dict[int, int]()
        self.counts = Counts()
        self.staged: Staged | None = None

    def send(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send all rows; yields those that cannot be sent, each with its reason. Raises QueueUnavailable
        where SQS takes none for ``retry_seconds``, ConfigurationError, SchemaMismatch or StoreMissing for
        what no row is to blame for."""
        try:
            for batch in batches:
                for chunk in chunks(batch):
                    if failed := self._send_chunk(chunk):
                        positions = sorted(failed)
                        yield rejected(chunk, positions, [str(failed[row]) for row in positions])
            if self.bulk is not None:
                self.staged = self.bulk.close()
        finally:
            if self.bulk is not None:
                self.bulk.objects.give_up()
            if self.receipts is not None:
                self.receipts.close()
        if self.planned is not None:
            self.planned.price(self.counts)

    def _send_chunk(self, chunk: pa.RecordBatch) -> _Failed:
        self._go_on()
        failed: _Failed = {}
        by_endpoint: dict[tuple[str, bool], _Waiting] = {}
        rows = self.rows.resolved(chunk)
        left = list(range(len(rows)))
        if self.bulk is not None:
            left = self.bulk.take(rows, self._seen, self.counts)
        rest = rows if len(left) == len(rows) else rows.take(pa.array(left, pa.int64()))
        for row, (endpoint, message) in zip(left, self.rows.read(rest), strict=True):
            if isinstance(message, errors.SqsDelayError):
                failed[row] = message
                continue
            far = self.bulk is not None and self.bulk.is_far(message)
            try:
                if far:  # What cannot be stored must not keep another row from its id.
                    to = Endpoint.parse(endpoint)
                    as_stored(checked(message, fifo=to.fifo), to.address, now_ms=0)
                mark = self.rows.mark(endpoint, message)
                if self._is_new(mark, message):
                    by_endpoint.setdefault((endpoint, far), []).append((row, message, mark))
            except errors.SqsDelayError as error:
                failed[row] = error
        for (endpoint, far), waiting in by_endpoint.items():
            step = self.slice_rows or len(waiting)
            for start in range(0, len(waiting), step):
                self._go_on()
                self._send_waiting(endpoint, waiting[start : start + step], failed, far=far)
        for why in failed.values():
            self.counts.count_rejected(why)
        return failed

    def _go_on(self) -> None:
        if self.stopped():
            raise errors.SqsDelayError("the job was stopped; what it has sent is in its receipts")

    def _is_new(self, mark: Mark, message: Message) -> bool:
        """Whether a row is still to be sent; one like it may have been. Raises InvalidMessage."""
        original = self.before.original.content(mark.message_id)
        if original is not None and original != mark.content:
            raise errors.InvalidMessage(
                f"the row of id {message.message_id!r} is not the one that was sent: its body, "
                "due time, endpoint or attributes differ; replay the table as it was"
            )
        before = noted(self._seen, *mark)
        (sent,) = self.before.contents([mark.message_id])
        if before is not None:
            self.counts.repeated += 1
        elif sent == mark.content:
            self.counts.already_sent += 1
        known = before if before is not None else sent
        if known is None or known == mark.content:
            return known is None
        where = "an earlier run of this job" if before is None else "a row before it in this table"
        raise errors.InvalidMessage(
            f"id {message.message_id!r} came with another body, due time, endpoint or attributes "
            f"in {where}; receivers would drop one of them: give each message its own id"
        )

    def _send_waiting(
        self, endpoint: str, waiting: _Waiting, failed: _Failed, *, far: bool
    ) -> None:
        """Send rows to one endpoint; those that may be taken later, again until they are: failing the task
        would send all its other rows again, too. Those that are never taken get among the ``failed``."""
        progress_at, seconds = self.clock.monotonic(), self.rows.options.retry_seconds
        for attempt in count():
            refused = self._send_once(endpoint, waiting, far=far)
            failed.update((row, why) for (row, *_), why in refused if not _may_pass(why))
            later = [(each, why) for each, why in refused if _may_pass(why)]
            now = self.clock.monotonic()
            progress_at = now if len(later) < len(waiting) else progress_at
            waiting = [each for each, _ in later]
            if self.receipts is not None:
                self.receipts.flush()
            if not later:
                return
            self.counts.retried += len(later)
            if now - progress_at >= seconds:
                raise errors.QueueUnavailable(
                    f"{len(later)} rows for {endpoint} were not accepted, and for the "
                    f"{seconds} s of option retry_seconds none was: {later[0][1]}"
                )
            self.sleep(random.uniform(0, min(LONGEST_WAIT, 0.5 * 2 ** min(attempt, 9))))

    def _send_once(
        self, endpoint: str, waiting: _Waiting, *, far: bool
    ) -> list[tuple[_Row, errors.SqsDelayError]]:
        """Send, count and note; the rows that were not taken, and why."""
        sender, receipts = self.sender, self.receipts
        if self.bulk is not None and far:
            sender, receipts = self.bulk.sender, self.bulk.receipts
        elif self.rate is not None:  # What was not used is not saved up.
            now = self.clock.monotonic()
            if now < self._free_at:
                self.sleep(self._free_at - now)
            self._free_at = max(now, self._free_at) + len(waiting) / self.rate
        try:
            self.check_store(Endpoint.parse(endpoint).name)
            results = sender.send_many(endpoint, [message for _, message, _ in waiting])
        except errors.SqsDelayError as error:
            results = [SendResult(error=error)] * len(waiting)
        refused: list[tuple[_Row, errors.SqsDelayError]] = []
        for each, result in zip(waiting, results, strict=True):
            if result.error is not None:
                refused.append((each, result.error))
                continue
            _, message, mark = each
            parked = self.planned is not None and self.planned.add(message)
            self.counts.routes[str(Route.STORE if parked else result.route)] += 1
            if self.bulk is not None and far:
                self.bulk.note([mark.message_id], [mark.content])
            if receipts is not None:
                told = message.message_id, message.due_at, str(result.route), mark
                receipts.add(endpoint, *told)
        for _, why in refused:
            if isinstance(why, _OF_NO_ROW):
                raise why
        return refused


def _may_pass(error: errors.SqsDelayError) -> bool:
    transient = isinstance(error, errors.SendFailed) and error.transient
    return transient or isinstance(error, errors.QueueUnavailable | errors.StoreUnavailable)


def chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about `CHUNK_BYTES`, of at least one row."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, CHUNK_BYTES))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def rejected(rows: pa.RecordBatch, positions: Sequence[int], reasons: Sequence[str]) -> Any:
    """The rows at these positions, each with its reason."""
    taken = rows.take(pa.array(positions, pa.int64()))
    schema = rows.schema.append(pa.field("reason", pa.string(), nullable=False))
    return pa.RecordBatch.from_arrays(
        [*taken.columns, pa.array(reasons, pa.string())], schema=schema
    )
