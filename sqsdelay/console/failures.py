"""An error queue: its messages by reason, sent on again or discarded."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from contextlib import closing
from typing import Final

from sqsdelay.console.jobs import Outcome, Result
from sqsdelay.console.rendering import BODY_SHOWN, text_of
from sqsdelay.console.schemas import ErrorGroup, ErrorsRequest, ErrorsView, ErrorView
from sqsdelay.console.source import Source
from sqsdelay.core.delay import Reject
from sqsdelay.core.message import size_of
from sqsdelay.core.readable import instant
from sqsdelay.core.rejection import Rejection
from sqsdelay.errors import ConfigurationError
from sqsdelay.operating.error_queue import Discard, Retry, RetryStatus

NO_REASON: Final = "(did not fit on the message; see the delay consumer's log)"

_VARIES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\b[\w-]*\d[\w.:-]*")
"""Names in quotes, and words with a digit in them: ids, numbers, instants."""


def kind_of(reason: str | None) -> str:
    """A reason without the names and numbers in it: equal for messages that failed alike."""
    return NO_REASON if reason is None else text_of(_VARIES.sub("…", reason))


def looked_at(source: Source, *, look: bool = False) -> ErrorsView:
    """The messages of an error queue, grouped by reason, the largest group first.

    Args:
        look: receive them anew. Otherwise they are those that were last received, if any: to receive
            a message raises its receive count, and a GET changes nothing.
    """
    if look:
        source.errors_sample.forget()
    source.queues_sample.start()
    sample = source.errors_sample.get() if look else source.errors_sample.known()
    # Not waited for where SQS has just not answered.
    asked = source.queues_sample.known if sample.trouble else source.queues_sample.get
    status = asked().value if source.on_sqs else None
    grouped: dict[str, list[Rejection]] = {}
    for rejection in sample.value or ():
        grouped.setdefault(kind_of(rejection.reason), []).append(rejection)
    groups = [
        ErrorGroup(reason=reason, messages=[_error(each) for each in some])
        for reason, some in sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    return ErrorsView(
        endpoint=source.name,
        groups=groups,
        shown=len(sample.value or ()),
        about=None if status is None else status.errors,
        looked=None if sample.at_ms is None else instant(sample.at_ms),
        trouble=sample.trouble,
    )


def _error(rejection: Rejection) -> ErrorView:
    copy = rejection.copy
    return ErrorView(
        key=text_of(copy.sqs_message_id),
        id=text_of(rejection.message_id),
        reason=None if rejection.reason is None else text_of(rejection.reason),
        due=None if isinstance(rejection.due, Reject) else instant(rejection.due),
        rejected=None if copy.sent_ms is None else instant(copy.sent_ms),
        receives=copy.receive_count,
        bytes=size_of(copy.body, {}),
        body=text_of(copy.body)[:BODY_SHOWN],
    )


def wanted(request: ErrorsRequest) -> Callable[[Rejection], bool]:
    """Whether a message is asked for.

    Raises:
        ConfigurationError: not exactly one of keys, a reason and all.
    """
    given = (request.keys is not None, request.reason is not None, request.all)
    if sum(given) != 1:
        raise ConfigurationError("give keys, a reason or all=true")
    if request.keys is not None:
        keys = set(request.keys)
        return lambda rejection: rejection.copy.sqs_message_id in keys
    reason = request.reason
    if reason is not None:
        return lambda rejection: kind_of(rejection.reason) == reason
    return lambda _: True


def retried(
    source: Source, request: ErrorsRequest, *, undated_now: bool
) -> Callable[[], Generator[Outcome]]:
    """Send messages on to their destination, or to the delay queue where they are not due yet.

    Args:
        undated_now: those that do not say when they are due go at once; otherwise they stay.

    Raises:
        ConfigurationError
    """
    where = wanted(request)
    queue = source.errors()

    def run() -> Generator[Outcome]:
        due_ms = source.latest_ms() if undated_now else None
        with closing(_closable(queue.retry(where=where, due_ms=due_ms))) as answers:
            yield from _until_found(answers, request.keys, _retried)

    return run


def discarded(source: Source, request: ErrorsRequest) -> Callable[[], Generator[Outcome]]:
    """Delete messages for good.

    Raises:
        ConfigurationError
    """
    where = wanted(request)
    queue = source.errors()

    def run() -> Generator[Outcome]:
        with closing(_closable(queue.discard(where=where))) as answers:
            yield from _until_found(answers, request.keys, _discarded)

    return run


def _closable(answers: object) -> Generator[Retry | Discard]:
    assert isinstance(answers, Generator)
    return answers


def _until_found(
    answers: Generator[Retry | Discard],
    keys: Collection[str] | None,
    in_words: Callable[[Retry | Discard], Outcome],
) -> Generator[Outcome]:
    """Outcomes; with keys, until each has one, and then which were not found."""
    missing = dict.fromkeys(keys or ())
    for answer in answers:
        missing.pop(answer.rejection.copy.sqs_message_id, None)
        yield in_words(answer)
        if keys is not None and not missing:
            return
    for key in missing:
        yield Outcome(
            message_id=key,
            result=Result.NOT_DONE,
            text="not found: somebody else has received it; unless they delete it, it is back "
            "within two minutes",
        )


def _retried(answer: Retry | Discard) -> Outcome:
    assert isinstance(answer, Retry)
    message_id = text_of(answer.rejection.message_id)
    if answer.status is RetryStatus.SENT:
        due = "" if answer.due_ms is None else f", due {instant(answer.due_ms)}"
        text = f"sent to {answer.queue}{due}"
        return Outcome(message_id=message_id, result=Result.DONE, text=text)
    if answer.status is RetryStatus.NOT_DELETED:
        text = f"sent to {answer.queue}, but still in the error queue: {answer.error}; discard it there"
        return Outcome(message_id=message_id, result=Result.NOT_DONE, text=text)
    text = f"not done, still in the error queue: {answer.error}"
    return Outcome(message_id=message_id, result=Result.NOT_DONE, text=text_of(text))


def _discarded(answer: Retry | Discard) -> Outcome:
    assert isinstance(answer, Discard)
    message_id = text_of(answer.rejection.message_id)
    if answer.error is None:
        return Outcome(message_id=message_id, result=Result.DONE, text="discarded")
    text = f"not done, still in the error queue: {answer.error}"
    return Outcome(message_id=message_id, result=Result.NOT_DONE, text=text)
