"""What is done to messages: parked ones cancelled, released or moved, failed ones sent on or discarded."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

from sqsdelay.console.messages import Filter, text_of
from sqsdelay.console.services import Outcome, Result, Work
from sqsdelay.console.source import Source
from sqsdelay.core.delay import too_far
from sqsdelay.core.readable import instant
from sqsdelay.core.rejection import Rejection
from sqsdelay.errors import ConfigurationError, InvalidDelay, SqsDelayError, StoreUnavailable
from sqsdelay.operating.error_queue import Discard, Retry, RetryStatus
from sqsdelay.parking.parking import Change, Schedule
from sqsdelay.ports.stores import ParkingPlace

ON_PARKED: Final = ("cancel", "release", "reschedule")
ON_FAILED: Final = ("retry", "discard")

AT_ONCE: Final = 4
"""Messages changed at a time. Where a store answers for none of so many, the others are left alone."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A parked message to change. With ``due_ms``, as it was seen: if it was moved since, nothing is done."""

    id: str
    due_ms: int | None

    @classmethod
    def of(cls, mark: str) -> Self:
        """What a list's box says: ``due_ms:id``, the id percent-encoded."""
        due, colon, message_id = mark.partition(":")
        if not colon or (due and not (due.isascii() and due.isdigit() and len(due) <= 15)):
            raise ConfigurationError("the form names no message; load the page again")
        return cls(unquote(message_id), int(due) if due else None)


_ELSEWHERE: Final = (
    "it is not in the store. If it is in the delay queue, the delay consumer {does} it at its next hop; "
    "if it was released, cancelled or never sent, nothing happens"
)


def of_parked(source: Source, action: str, chosen: Sequence[Chosen], due_ms: int | None) -> Work:
    """Cancel, release or reschedule messages, to ``due_ms`` (epoch milliseconds).

    Raises `InvalidDelay` where that is beyond what the endpoint takes.
    """
    now_ms = source.latest_ms()
    problem = too_far(due_ms or 0, now_ms, source.settings.max_delay_seconds)
    if problem is not None:
        raise InvalidDelay(problem)
    moved_ms = now_ms if due_ms is None else due_ms
    done, does = {
        "cancel": ("cancelled", "cancels"),
        "release": ("due now: the dispatcher sends it next", "releases"),
        "reschedule": (f"moved to {instant(moved_ms)}", "moves"),
    }[action]

    def change(place: ParkingPlace, message: Chosen) -> Outcome:
        kept = place.find(message.id)
        if kept is None and action == "release":
            text = "not done: it is not in the store; it was released or cancelled meanwhile"
            return Outcome(message.id, Result.NOT_DONE, text)
        if kept is not None and message.due_ms not in (None, kept.due_ms):
            text = f"not done: it was moved meanwhile, and is due at {instant(kept.due_ms)}; look again"
            return Outcome(message.id, Result.NOT_DONE, text)
        schedule = Schedule(place, endpoint=source.name, ledger=source.ledger)
        if action == "cancel":
            answer = schedule.cancel(message.id, now_ms=now_ms)
        else:
            answer = schedule.reschedule(message.id, moved_ms, now_ms=now_ms)
        if answer is Change.DONE:
            return Outcome(message.id, Result.DONE, done)
        if answer is Change.RELEASED:
            text = "too late: it is being released at this moment, and will arrive"
            return Outcome(message.id, Result.NOT_DONE, text)
        return Outcome(message.id, Result.REQUESTED, _ELSEWHERE.format(does=does))

    def attempt(message: Chosen) -> tuple[Outcome, StoreUnavailable | None]:
        try:
            return source.of_store(lambda place: change(place, message)), None
        except StoreUnavailable as error:
            text = f"perhaps not done, look again: {error}"
            return Outcome(message.id, Result.NOT_DONE, text), error
        except SqsDelayError as error:
            return Outcome(message.id, Result.NOT_DONE, f"not done: {error}"), None

    def run() -> Generator[Outcome]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(chosen), AT_ONCE):
                lost = []
                for outcome, error in pool.map(attempt, chosen[start : start + AT_ONCE]):
                    lost += [error] if error else []
                    yield outcome
                if len(lost) == AT_ONCE:
                    # One that hangs would take many seconds for each of the others.
                    raise lost[0]

    return run


NO_REASON: Final = "(did not fit on the message; see the delay consumer's log)"

_VARIES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\b[\w-]*\d[\w.:-]*")
"""Names in quotes, and words with a digit in them: ids, numbers, instants."""


def kind_of(reason: str | None) -> str:
    """A reason without the names and numbers in it: equal for messages that failed alike."""
    return NO_REASON if reason is None else text_of(_VARIES.sub("…", reason))


def dated(rejection: Rejection) -> int | None:
    """When a message is due, epoch milliseconds, if it says so."""
    return rejection.due if isinstance(rejection.due, int) else None


def failed(source: Source, which: Filter, group: str = "") -> list[Rejection]:
    """Of the messages that were last looked at, those a filter means; of one kind of reason, if it is given.

    No message is received.
    """
    start_ms, end_ms = which.bounds_ms
    wanted = which.reason.casefold()

    def means(each: Rejection) -> bool:
        due_ms = dated(each)
        if (start_ms or end_ms) and due_ms is None:
            return False
        if due_ms is not None and not (start_ms or 0) <= due_ms < (end_ms or due_ms + 1):
            return False
        kind, original = kind_of(each.reason), each.original
        if group not in ("", kind) or wanted not in f"{each.reason or ''}\n{kind}".casefold():
            return False
        return which.matches(text_of(each.message_id), text_of(original.body), original.attributes)

    return [each for each in source.errors_sample.known().value or () if means(each)]


def grouped(rejections: Collection[Rejection]) -> list[tuple[str, list[Rejection]]]:
    """Messages by reason, the largest group first."""
    groups: dict[str, list[Rejection]] = {}
    for each in rejections:
        groups.setdefault(kind_of(each.reason), []).append(each)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def of_failed(source: Source, action: str, keys: Collection[str], *, undated_now: bool) -> Work:
    """Send messages on to where they are due, or discard them for good.

    Args:
        keys: SQS's ids of the copies; two may have one message id.
        undated_now: those that do not say when they are due are due now.
    """
    queue = source.errors()

    def wanted(rejection: Rejection) -> bool:
        return rejection.copy.sqs_message_id in keys

    def run() -> Generator[Outcome]:
        missing = dict.fromkeys(keys)
        answers: Any
        if action == "retry":
            due_ms = source.latest_ms() if undated_now else None
            answers = queue.retry(where=wanted, due_ms=due_ms)
        else:
            answers = queue.discard(where=wanted)
        with closing(answers):
            for answer in answers:
                missing.pop(answer.rejection.copy.sqs_message_id, None)
                yield _answered(answer)
                if not missing:
                    return
        for key in missing:
            text = (
                "not found: somebody else has received it; unless they delete it, it is back within "
                "two minutes"
            )
            yield Outcome(key, Result.NOT_DONE, text)

    return run


def _answered(answer: Retry | Discard) -> Outcome:
    message_id = text_of(answer.rejection.message_id)
    text = f"not done, still in the error queue: {answer.error}"
    if isinstance(answer, Discard):
        if answer.error is None:
            return Outcome(message_id, Result.DONE, "discarded")
    elif answer.status is RetryStatus.SENT:
        due = "" if answer.due_ms is None else f", due {instant(answer.due_ms)}"
        return Outcome(message_id, Result.DONE, f"sent to {answer.queue}{due}")
    elif answer.status is RetryStatus.NOT_DELETED:
        text = f"sent to {answer.queue}, but still in the error queue: {answer.error}; discard it there"
    return Outcome(message_id, Result.NOT_DONE, text_of(text))
