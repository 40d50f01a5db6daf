"""An error queue: its messages by reason, sent on again or discarded."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from contextlib import closing
from typing import Any, Final

from sqsdelay.console.messages import Filter, text_of
from sqsdelay.console.services import Outcome, Result
from sqsdelay.console.source import Source
from sqsdelay.core.readable import instant
from sqsdelay.core.rejection import Rejection
from sqsdelay.operating.error_queue import Discard, Retry, RetryStatus

NO_REASON: Final = "(did not fit on the message; see the delay consumer's log)"

_VARIES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\b[\w-]*\d[\w.:-]*")
"""Names in quotes, and words with a digit in them: ids, numbers, instants."""


def kind_of(reason: str | None) -> str:
    """A reason without the names and numbers in it: equal for messages that failed alike."""
    return NO_REASON if reason is None else text_of(_VARIES.sub("…", reason))


def dated(rejection: Rejection) -> int | None:
    """When a message is due, epoch milliseconds, if it says so."""
    return rejection.due if isinstance(rejection.due, int) else None


def matching(source: Source, which: Filter) -> list[Rejection]:
    """Of the messages that were last looked at, those a filter means; no message is received.

    Raises:
        InvalidDelay
    """
    start_ms, end_ms = which.bounds_ms
    wanted = which.reason.casefold()

    def means(each: Rejection) -> bool:
        due_ms = dated(each)
        if (start_ms or end_ms) and due_ms is None:
            return False
        if due_ms is not None and not (start_ms or 0) <= due_ms < (end_ms or due_ms + 1):
            return False
        reason = f"{each.reason or ''}\n{kind_of(each.reason)}".casefold()
        original = each.original
        body = text_of(original.body)
        return wanted in reason and which.matches(
            text_of(each.message_id), body, original.attributes
        )

    return [each for each in source.errors_sample.known().value or () if means(each)]


def grouped(rejections: Collection[Rejection]) -> list[tuple[str, list[Rejection]]]:
    """Messages by reason, the largest group first."""
    groups: dict[str, list[Rejection]] = {}
    for each in rejections:
        groups.setdefault(kind_of(each.reason), []).append(each)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def changed(
    source: Source, action: str, keys: Collection[str], *, undated_now: bool
) -> Callable[[], Generator[Outcome]]:
    """Send messages on to where they are due, or discard them for good.

    Args:
        keys: SQS's ids of the copies; two may have one message id.
        undated_now: those that do not say when they are due are due now.

    Raises:
        ConfigurationError
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
                yield _retried(answer) if isinstance(answer, Retry) else _discarded(answer)
                if not missing:
                    return
        for key in missing:
            text = (
                "not found: somebody else has received it; unless they delete it, it is back within "
                "two minutes"
            )
            yield Outcome(key, Result.NOT_DONE, text)

    return run


def _retried(answer: Retry) -> Outcome:
    message_id = text_of(answer.rejection.message_id)
    if answer.status is RetryStatus.SENT:
        due = "" if answer.due_ms is None else f", due {instant(answer.due_ms)}"
        return Outcome(message_id, Result.DONE, f"sent to {answer.queue}{due}")
    if answer.status is RetryStatus.NOT_DELETED:
        text = f"sent to {answer.queue}, but still in the error queue: {answer.error}; discard it there"
    else:
        text = f"not done, still in the error queue: {answer.error}"
    return Outcome(message_id, Result.NOT_DONE, text_of(text))


def _discarded(answer: Discard) -> Outcome:
    message_id = text_of(answer.rejection.message_id)
    if answer.error is None:
        return Outcome(message_id, Result.DONE, "discarded")
    text = f"not done, still in the error queue: {answer.error}"
    return Outcome(message_id, Result.NOT_DONE, text)
