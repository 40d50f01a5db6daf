"""One party of a virtual-time scenario: its clock, and its way to the queues, both of which fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any, TypeVar

from sqsdelay.core.delay import BrokerClock
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.limits import MAX_BATCH_ENTRIES
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import QueueUnavailable, SendFailed
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.simulation.journal import Asked, Journal


class Killed(BaseException):
    """The process dies here: nothing that it would have done afterwards happens."""


T = TypeVar("T")


class Trouble(StrEnum):
    """What can happen to one call of a party."""

    NOT_REACHED = "the call does not reach the queues"
    ANSWER_LOST = "the queues act, the answer is lost"
    PARTIAL = "some entries fail, not by the sender's fault"
    REFUSED = "some entries are refused as the sender's fault"
    KILLED_BEFORE = "the party dies before the call"
    KILLED_AFTER = "the party dies after the call"
    FROZEN = "the party is stopped for minutes around the call"
    SUSPENDED = "its machine is suspended: its monotonic clock stands"
    STEPPED = "its wall clock is stepped by minutes"


class PartyClock:
    """A machine's clock: a wall clock that may be wrong and stepped, a monotonic one that may stand."""

    def __init__(self, true: ManualClock, *, error_ms: int = 0) -> None:
        self._true = true
        self.error_ms = error_ms
        self.stood_ms = 0

    def now_ms(self) -> int:
        return self._true.true_ms + self.error_ms

    def monotonic(self) -> float:
        return (self._true.true_ms - self.stood_ms) / 1000


@dataclass(kw_only=True)
class Fate:
    """What happens to a party's calls, by chance: the same seed gives the same fate.

    ``chances`` are per call. ``pause`` lets so many seconds pass for everybody else.
    """

    random: Random
    chances: Mapping[Trouble, float]
    pause: Callable[[float], None]
    denied: set[str] = field(default_factory=set)
    """Queues that nobody may send to for now."""

    def draw(self) -> Trouble | None:
        point = self.random.random()
        for trouble, chance in self.chances.items():
            point -= chance
            if point < 0:
                return trouble
        return None


@dataclass(frozen=True, kw_only=True)
class Held:
    """A message in a queue, visible or not."""

    message: OutgoingMessage
    sqs_message_id: str
    visible_ms: int


class WatchedQueues(InMemoryQueues):
    """Queues whose content a test can look at without receiving it."""

    @property
    def names(self) -> set[str]:
        return set(self._queues)

    def held(self, name: str) -> list[Held]:
        """All that is in a queue."""
        return [
            Held(message=m.message, sqs_message_id=f"sqs-{m.sequence}", visible_ms=m.visible_ms)
            for m in self._queue(name).messages.values()
        ]


@dataclass(kw_only=True)
class PartysQueues:
    """The `Queues` port as one party has it: the shared queues, behind its fate. Journals each call."""

    queues: InMemoryQueues
    party: str
    clock: PartyClock
    fate: Fate
    journal: Journal

    def __post_init__(self) -> None:
        self.broker_clock = BrokerClock(self.clock)

    def url(self, queue: QueueRef) -> str:
        return self.queues.url(queue)

    def synchronise(self, queue: QueueRef) -> None:
        self._raising(lambda: None)

    def attributes(self, queue_url: str) -> Mapping[str, str]:
        return self.queues.attributes(queue_url)

    def receive_batch(
        self,
        queue_url: str,
        *,
        wait_seconds: int,
        limit: int = MAX_BATCH_ENTRIES,
        visibility_seconds: int | None = None,
    ) -> list[ReceivedMessage]:
        def receive() -> list[ReceivedMessage]:
            return self.queues.receive_batch(
                queue_url,
                wait_seconds=wait_seconds,
                limit=limit,
                visibility_seconds=visibility_seconds,
            )

        copies = self._raising(receive)
        self.journal.received(self.party, queue_url, copies, at_ms=self._now_ms)
        at = self.clock.monotonic()
        return [replace(copy, received_at=at) for copy in copies]

    def _raising(self, call: Callable[[], T]) -> T:
        trouble = self._before()
        if trouble is Trouble.NOT_REACHED:
            raise QueueUnavailable("connection reset")
        answer = call()
        if trouble is Trouble.ANSWER_LOST:
            raise QueueUnavailable("connection reset")
        self._after(trouble)
        return answer

    def send_batch(
        self, queue_url: str, entries: Sequence[OutgoingMessage]
    ) -> list[SendReceipt | Failure]:
        if queue_url in self.fate.denied:
            self.journal.inject()
            return [_failure("AccessDenied", transient=True)] * len(entries)

        def journal(answers: Sequence[Any], answered: bool) -> None:
            asked = [
                Asked(
                    body=entry.body,
                    deduplication_id=entry.deduplication_id,
                    timer_seconds=entry.delay_seconds,
                    made=answer.sqs_message_id if isinstance(answer, SendReceipt) else None,
                )
                for entry, answer in zip(entries, answers, strict=True)
            ]
            self.journal.sent(self.party, queue_url, asked, at_ms=self._now_ms, answered=answered)

        return self._per_entry(
            entries, lambda left: self.queues.send_batch(queue_url, left), journal
        )

    def delete_batch(
        self, queue_url: str, copies: Sequence[ReceivedMessage]
    ) -> list[Failure | None]:
        def journal(answers: Sequence[Any], answered: bool) -> None:
            asked = [
                (copy.body, copy.sqs_message_id, answer is None)
                for copy, answer in zip(copies, answers, strict=True)
            ]
            self.journal.deleted(
                self.party, queue_url, asked, at_ms=self._now_ms, answered=answered
            )

        return self._per_entry(
            copies, lambda left: self.queues.delete_batch(queue_url, left), journal
        )

    def hide_batch(
        self, queue_url: str, copies: Sequence[tuple[ReceivedMessage, int]]
    ) -> list[Failure | None]:
        return self._per_entry(
            copies, lambda left: self.queues.hide_batch(queue_url, left), lambda *_: None
        )

    def _per_entry(
        self,
        entries: Sequence[Any],
        call: Callable[[list[Any]], Sequence[Any]],
        journal: Callable[[Sequence[Any], bool], None],
    ) -> list[Any]:
        trouble = self._before()
        failed = self._failed_entries(trouble, len(entries))
        left = [entry for entry, failure in zip(entries, failed, strict=True) if failure is None]
        done = iter(call(left) if left else ())
        answers: list[Any] = [next(done) if failure is None else failure for failure in failed]
        lost = trouble is Trouble.ANSWER_LOST
        journal(answers, not lost and trouble is not Trouble.KILLED_AFTER)
        if lost:
            return [_failure("ConnectionClosedError", transient=True)] * len(entries)
        self._after(trouble)
        return answers

    def _failed_entries(self, trouble: Trouble | None, count: int) -> list[Failure | None]:
        if trouble is Trouble.NOT_REACHED:
            return [_failure("ServiceUnavailable", transient=True)] * count
        if trouble is Trouble.PARTIAL:
            failure = _failure("InternalError", transient=True)
        elif trouble is Trouble.REFUSED:
            failure = _failure("InvalidParameterValue", transient=False)
        else:
            return [None] * count
        return [failure if self.fate.random.random() < 0.5 else None for _ in range(count)]

    def _before(self) -> Trouble | None:
        trouble = self.fate.draw()
        if trouble is not None:
            self.journal.inject()
        seconds = self.fate.random.choice((1, 30, 170, 200, 310, 900))
        if trouble is Trouble.KILLED_BEFORE:
            raise Killed
        if trouble is Trouble.FROZEN:
            self.fate.pause(seconds)
        elif trouble is Trouble.SUSPENDED:
            self.clock.stood_ms += seconds * 1000
            self.fate.pause(seconds)
        elif trouble is Trouble.STEPPED:
            self.clock.error_ms = self.fate.random.randint(-600_000, 600_000)
        return trouble

    def _after(self, trouble: Trouble | None) -> None:
        if trouble is Trouble.KILLED_AFTER:
            raise Killed
        # Each answer is dated, to the second, as SQS's are.
        self.broker_clock.observe(self.queues.clock.true_ms // 1000 * 1000)

    @property
    def _now_ms(self) -> int:
        return self.queues.clock.true_ms


def _failure(code: str, *, transient: bool) -> Failure:
    if transient:
        return Failure(code, QueueUnavailable(code), transient=True, outage=True)
    return Failure(code, SendFailed(code, code=code, transient=False), transient=False)
