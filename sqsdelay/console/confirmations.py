"""What a change will do, in words, before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqsdelay.console.failures import kind_of
from sqsdelay.console.schemas import ChosenMessage
from sqsdelay.console.shown import text_of
from sqsdelay.console.source import Source, told
from sqsdelay.core.readable import age, instant
from sqsdelay.errors import ConfigurationError
from sqsdelay.operating.status import overdue_remedy

SHOWN: Final = 20
"""Messages named in a confirmation; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What is asked for.

    Args:
        action: ``cancel``, ``release``, ``reschedule``, ``retry`` or ``discard``.
        target: where its form goes.
        title: the question.
        sentences: what will happen.
        button: the answer; None where a due time is still to be given.
        names: of whom, as far as they are shown; each with what is known of it.
        more: how many others.
        final: it cannot be undone.
        due: the new due time.
    """

    action: str
    endpoint: str
    target: str
    title: str
    sentences: list[str]
    button: str | None
    names: list[tuple[str, str]] = field(default_factory=list)
    more: int = 0
    final: bool = False
    due: str | None = None
    undated: bool = False


def of_messages(
    source: Source, action: str, chosen: Sequence[ChosenMessage], due_ms: int | None
) -> Confirmation:
    """Before messages are cancelled, released or moved.

    Raises:
        ConfigurationError: no such change.
    """
    some = _messages(len(chosen))
    names = [
        (each.id, "" if each.due_ms is None else instant(each.due_ms)) for each in chosen[:SHOWN]
    ]
    late = "A message that is being released at that moment still arrives; the result lists it."
    elsewhere = (
        "A message in the delay queue is changed at its next hop."
        if any(each.due_ms is None for each in chosen)
        else None
    )
    sentences: list[str | None]
    button: str | None
    if action == "cancel":
        title, button = f"Cancel {some} of {source.name}?", f"Cancel {some}"
        sentences = [
            "They are removed from the store and never sent. This cannot be undone.", elsewhere, late
        ]  # fmt: skip
    elif action == "release":
        title, button = f"Release {some} of {source.name} now?", f"Release {some} now"
        sentences = [
            f"They become due at once, whatever their due time. {_releases(source)}", late,
        ]  # fmt: skip
    elif action == "reschedule":
        title = f"Reschedule {some} of {source.name}?"
        button = None if due_ms is None else f"Move {some}"
        when = "at the time you give" if due_ms is None else f"at {instant(due_ms)}"
        sentences = [
            f"They will be due {when}, instead of at their present due time.",
            elsewhere,
            late,
        ]
    else:
        raise ConfigurationError(f"{action!r} is not an action on messages")
    return Confirmation(
        action=action,
        endpoint=source.name,
        target="/messages/do",
        title=title,
        sentences=[each for each in sentences if each],
        button=button,
        names=names,
        more=len(chosen) - len(names),
        final=action == "cancel",
        due=None if due_ms is None else instant(due_ms),
    )


def _releases(source: Source) -> str:
    """Who sends what is due."""
    told(lambda: source.of_store(lambda found: found).get())
    soonest = source.soonest_seconds
    if soonest is not None:
        return (
            f"But this store cannot make a message due sooner than in {age(soonest)}: they will "
            "stay as they are. Cancel them and send them again instead."
        )
    status = source.store_sample.get().value
    if status is not None and status.overdue:
        remedy = overdue_remedy(source.endpoint, source.store_url or "")
        return f"But no dispatcher seems to be working: they will wait until one is; {remedy}."
    return "The dispatcher sends them next, within seconds if it runs continuously."


def of_errors(source: Source, action: str, keys: Sequence[str], reason: str | None) -> Confirmation:
    """Before messages of an error queue are sent on or discarded.

    Raises:
        ConfigurationError: no such change.
    """
    seen = source.errors_sample.get().value or ()
    chosen = [
        each
        for each in seen
        if (each.copy.sqs_message_id in keys if reason is None else kind_of(each.reason) == reason)
    ]
    some = _messages(len(keys)) if reason is None else "all messages of this reason"
    if action == "retry":
        title, button = f"Retry {some} of {source.name}?", f"Retry {some}"
        sentences = [
            f"Each goes to {source.name}, or to its delay queue if it is not due yet, with its id, due "
            "time and attributes. It leaves the error queue once the other queue has confirmed it."
        ]
    elif action == "discard":
        title, button = f"Discard {some} of {source.name}?", f"Discard {some}"
        sentences = [
            "They are deleted from the error queue, and there is no other copy. This cannot be undone."
        ]
    else:
        raise ConfigurationError(f"{action!r} is not an action on an error queue")
    if reason is not None:
        sentences.append(
            f"{len(chosen):,} of them were there when the queue was read; newer ones are included."
        )
    names = [(text_of(each.message_id), text_of(each.reason or "")) for each in chosen[:SHOWN]]
    return Confirmation(
        action=action,
        endpoint=source.name,
        target="/errors/do",
        title=title,
        sentences=sentences,
        button=button,
        names=names,
        more=max(0, len(chosen) - len(names)),
        final=action == "discard",
        undated=action == "retry" and any(not isinstance(each.due, int) for each in chosen),
    )


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
