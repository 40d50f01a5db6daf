"""The part of a task's rows that goes into an S3 store's wheels, staged there until the job commits.

Rows that are plain are staged column by column; others go through the sender, one by one, whose store
is the place that stages them. Whether a row is due far enough ahead is decided by an instant that the
driver fixes: all attempts on a row decide alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from sqsdelay.core.checked_message import checked
from sqsdelay.core.delay import due_at_ms, utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, Route
from sqsdelay.core.stored_message import as_stored
from sqsdelay.errors import InvalidEndpoint
from sqsdelay.ledger.events import Ledger
from sqsdelay.limits import MIN_QUEUE_LIMIT_BYTES
from sqsdelay.parking.parking import ParkingSettings
from sqsdelay.ports.queues import Queues, SizeLimits
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.spark.sink.options import DELAY
from sqsdelay.spark.sink.receipts import NOTHING_SENT, Mark, ReceiptsWriter, SeenIds, SentBefore
from sqsdelay.spark.sink.rows import Plain, Rows, due_column, plain_rows, spelled
from sqsdelay.spark.sink.run import Counts, Run, Staged, insist
from sqsdelay.spark.sink.staging import PROBE, Staging, mark_of, numbers
from sqsdelay.spark.sink.stored_job import wheel_of
from sqsdelay.stores.s3.wheel import Wheel


@dataclass
class Bulk:
    """What a task stages.

    ``queues`` are asked about endpoints. With a ``ledger`` rows are staged one by one, as those of a replay.
    ``sent_before`` is what the receipts show as sent.
    """

    rows: Rows
    run: Run
    queues: Queues
    attempt: str
    receipts: ReceiptsWriter | None = None
    ledger: Ledger | None = None
    sent_before: SentBefore = NOTHING_SENT
    open_wheel: Callable[[str, str], Wheel] = wheel_of

    def __post_init__(self) -> None:
        options = self.rows.options
        # A replay compares each row with the receipts.
        self._quick = self.ledger is None and options.replay is None
        self._limits = SizeLimits(self.queues)
        self._places: dict[str, Staging] = {}
        self._usable: dict[str, Endpoint | None] = {}
        # A delay counts from another instant when the job is run again without receipts.
        self._since_ms = self.rows.delay_start_ms if self.rows.columns.has(DELAY) else 0
        settings = SenderSettings(
            hop_seconds=options.hop_seconds,
            max_delay_seconds=options.max_delay_seconds,
            parking=ParkingSettings(lambda name: cast(ParkingPlace, self._place(name)), 0),
            idempotent=True,
            ledger=self.ledger,
        )
        self.sender = QueueSender(self.queues, settings)

    def is_far(self, message: Message) -> bool:
        """Whether a message is to be staged."""
        return message.due_at is not None and due_at_ms(message.due_at) > self.run.after_ms

    def mark(self, endpoint: str, message: Message) -> Mark:
        """The mark that is kept with a message that is stored; raises SqsDelayError where it cannot be."""
        to, now_ms = Endpoint.parse(endpoint), self.run.now_ms
        stored = as_stored(checked(message, fifo=to.fifo), to.address, now_ms=now_ms)
        return mark_of(stored, self._since_ms)

    def stored(self, endpoint: str, message_id: int) -> int | None:
        """The content that earlier runs of the job have stored under an id; None for none."""
        return self._place(Endpoint.parse(endpoint).name).stored.content(message_id)

    def take(self, chunk: pa.RecordBatch, seen: SeenIds, counts: Counts) -> list[int]:
        """Stage what is plain; the positions of the rows that are left."""
        if not self._quick:
            return list(range(chunk.num_rows))
        batch = spelled(chunk, self.rows.columns.spelled)
        run = self.run
        dues = due_column(self.rows, batch)
        plain = plain_rows(self.rows, batch, dues, after_ms=run.after_ms, now_ms=run.now_ms)
        left = set(range(chunk.num_rows))
        if plain is not None:
            for name in pc.unique(plain.endpoints).to_pylist():
                here = plain.where(pc.equal(plain.endpoints, name))
                endpoint = self._endpoint(name)
                if endpoint is not None and len(here.positions):
                    done = self._stage(endpoint, here, seen, counts)
                    self._note(chunk, done)
                    left -= set(done)
        return sorted(left)

    def _note(self, chunk: pa.RecordBatch, positions: list[int]) -> None:
        """Leave receipts of rows that are staged, as of those that are sent."""
        if self.receipts is None or not positions:
            return
        for endpoint, message in self.rows.read(chunk.take(pa.array(positions))):
            assert isinstance(message, Message), "plain rows are messages"
            mark = Mark.of(endpoint, message)
            if self.sent_before.content(mark.message_id) is None:
                self.receipts.add(endpoint, message, str(Route.STORE), mark)
        self.receipts.flush()

    def _stage(self, endpoint: Endpoint, plain: Plain, seen: SeenIds, counts: Counts) -> list[int]:
        """Stage rows to one endpoint; the positions of those that are done with."""
        longest = pc.max(plain.sizes).as_py()
        if longest > MIN_QUEUE_LIMIT_BYTES:
            limit = self._limits.of(endpoint.queue, size=longest)
            plain = plain.where(pc.less_equal(plain.sizes, limit))
        place = self._place(endpoint.name)
        ids = numbers(map(str.encode, plain.ids.to_pylist()))
        lines = plain.lines(endpoint.address)
        since = plain.lines(endpoint.address, self._since_ms) if self._since_ms else lines
        contents = numbers(since.to_pylist())
        new, done = self._new(place, ids, contents, seen, counts)
        positions = plain.positions.to_pylist()
        dues = plain.dues
        if len(new) < len(ids):
            some = pa.array(new, pa.int64())
            lines, dues = lines.take(some), dues.take(some)
            ids, contents = [ids[n] for n in new], [contents[n] for n in new]
        if new:
            place.add(dues, lines, ids, contents)
            counts.routes[str(Route.STORE)] += len(new)
        return [positions[n] for n in done]

    def _new(
        self, place: Staging, ids: list[int], contents: list[int], seen: SeenIds, counts: Counts
    ) -> tuple[list[int], list[int]]:
        """Which rows are to be staged, and which of all are done with then: others repeat an id."""
        if not (place.stored.ids or self.sent_before.ids) and seen.note_all(ids, contents):
            every = list(range(len(ids)))
            return every, every
        new, done = [], []
        for n, (each, content) in enumerate(zip(ids, contents, strict=True)):
            stored = place.stored.content(each)
            if stored not in (None, content):
                continue
            if stored is None and self.sent_before.content(each) is not None:
                continue
            if seen.note(Mark(each, content)) is not None:
                continue
            done.append(n)
            if stored is None:
                new.append(n)
            else:
                counts.already_sent += 1
        return new, done

    def close(self) -> tuple[Staged, ...]:
        """Write all that is staged; raises StoreUnavailable."""
        if self.receipts is not None:
            self.receipts.close()
        closed = [(place.job, place.close()) for place in self._places.values()]
        jobs, told = (
            [job for job, each in closed if each],
            tuple(each for _, each in closed if each),
        )
        if len(told) < 2:
            return told
        return (insist(lambda: jobs[0].leave(told), self.rows.options.retry_seconds),)

    @property
    def noted(self) -> bool:
        """Whether it has left receipts."""
        return self.receipts is not None and self.receipts.wrote

    def give_up(self) -> None:
        """The task has failed."""
        for place in self._places.values():
            place.give_up()

    def _place(self, name: str) -> Staging:
        if name not in self._places:
            options = self.rows.options
            wheel = self.open_wheel(str(options.store), name)
            place = Staging(wheel, self.run, name, self.attempt, options, self._since_ms)
            self._places[name] = place
        return self._places[name]

    def _endpoint(self, name: str) -> Endpoint | None:
        """The endpoint, if it is one whose rows can be staged without a closer look at each."""
        if name not in self._usable:
            self._usable[name] = self._looked_at(name)
        return self._usable[name]

    def _looked_at(self, name: str) -> Endpoint | None:
        try:
            endpoint = Endpoint.parse(name)
        except InvalidEndpoint:
            return None
        if endpoint.fifo:
            return None
        probe = Message("x", due_at=utc(self.run.after_ms + 86_400_000), message_id=PROBE)
        (result,) = self.sender.send_many(name, [probe])
        return endpoint if result.error is None else None
