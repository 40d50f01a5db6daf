"""Parked messages: listed, found, and changed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final

from sqsdelay.console.jobs import Outcome, Result
from sqsdelay.console.ledger_file import History, LedgerFile
from sqsdelay.console.rendering import BODY_SHOWN, attributes_of, event_of, text_of
from sqsdelay.console.schemas import ChosenMessage, MessageView, ParkedPage, ParkedView
from sqsdelay.console.source import Source, told
from sqsdelay.core.delay import Reject, too_far
from sqsdelay.core.message import Route, size_of
from sqsdelay.core.readable import instant
from sqsdelay.core.rejection import Rejection
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidDelay, NoStore, SqsDelayError, StoreUnavailable
from sqsdelay.ledger.events import Event, EventKind
from sqsdelay.operating.status import Listing, parse_cursor
from sqsdelay.parking.schedule import Change
from sqsdelay.ports.stores import ParkingPlace

PAGE: Final = 50
MOST_ON_A_PAGE: Final = 500

MOST_LOST: Final = 3
"""Messages in a row whose store did not answer, after which the others of a change are left alone."""

_TOO_LATE: Final = "too late: it is being released at this moment, and will arrive"
_ELSEWHERE: Final = (
    "it is not in the store. If it is in the delay queue, the delay consumer {does} it at its next hop; "
    "if it was released, cancelled or never sent, nothing happens"
)


def listed(
    source: Source,
    *,
    after: str | None = None,
    due_from_ms: int | None = None,
    due_before_ms: int | None = None,
    limit: int = PAGE,
) -> ParkedPage:
    """A page of parked messages, the earliest due first.

    Raises:
        ConfigurationError: ``after`` is no cursor.
        NoStore, StoreMissing, StoreUnavailable
    """
    listing = Listing(
        after=None if after is None else parse_cursor(after),
        due_from_ms=due_from_ms,
        due_before_ms=due_before_ms,
    )

    def read(place: ParkingPlace) -> tuple[list[ParkedView], bool]:
        messages = [_parked(message) for message in listing.read(place, limit)]
        return messages, len(messages) == limit and listing.has_more(place)

    source.store_sample.start()
    messages, more = source.of_store(read).get()
    status = source.store_sample.get().value
    return ParkedPage(
        endpoint=source.name,
        messages=messages,
        total=None if status is None else status.parked,
        next=text_of(listing.cursor) if more else None,
    )


def _parked(message: StoredMessage) -> ParkedView:
    return ParkedView(
        id=text_of(message.message_id),
        due=instant(message.due_ms),
        due_ms=message.due_ms,
        bytes=len(message.body),
        failures=message.failures,
        unreadable=None if message.unreadable is None else text_of(message.unreadable),
    )


def found(source: Source, message_id: str, ledger: LedgerFile | None) -> MessageView:
    """All that is known of a message; what could not be asked is in ``trouble``."""
    view = MessageView(
        endpoint=source.name,
        id=text_of(message_id),
        state="nothing is known of it",
        where="unknown",
    )
    if source.on_sqs:
        source.queues_sample.start()
    stored, trouble = _in_store(source, message_id)
    if trouble is not None:
        view.trouble.append(f"Store: {trouble}")
    history, trouble = told(
        lambda: History() if ledger is None else ledger.history(source.name, message_id)
    )
    if trouble is not None:
        view.trouble.append(f"Ledger: {trouble}")
    if history is not None:
        _put_history(view, history)
    rejection = _in_error_queue(source, message_id, view)
    if rejection is not None:
        _put_rejection(view, rejection)
    if stored is not None:
        _put_stored(view, stored)
    return view


def _in_store(source: Source, message_id: str) -> tuple[StoredMessage | None, str | None]:
    try:
        return source.of_store(lambda place: place.find(message_id)).get(), None
    except NoStore:
        return None, None
    except SqsDelayError as error:
        return None, str(error)


def _in_error_queue(source: Source, message_id: str, view: MessageView) -> Rejection | None:
    if not source.on_sqs:
        return None
    status = source.queues_sample.get()
    if status.value is None or not status.value.errors:
        if status.trouble:
            view.trouble.append(f"SQS: {status.trouble}")
        return None
    sample = source.errors_sample.known()
    if sample.trouble:
        view.trouble.append(f"Error queue: {sample.trouble}")
    elif sample.at_ms is None:
        view.trouble.append("Error queue: nobody has looked at its messages yet; see Errors")
    return next((r for r in sample.value or () if r.message_id == message_id), None)


def _put_stored(view: MessageView, stored: StoredMessage) -> None:
    view.where, view.state = "store", "waits in the store"
    view.due, view.due_ms = instant(stored.due_ms), stored.due_ms
    view.destination = text_of(stored.destination)
    _put_body(view, text_of(stored.body), len(stored.body))
    view.attributes = attributes_of(stored.attributes)
    view.group_id = None if stored.group_id is None else text_of(stored.group_id)
    view.failures = stored.failures
    if stored.unreadable is not None:
        view.unreadable = text_of(stored.unreadable)


def _put_rejection(view: MessageView, rejection: Rejection) -> None:
    view.where, view.state = "error queue", "could not be delivered; it is in the error queue"
    view.reason = None if rejection.reason is None else text_of(rejection.reason)
    if not isinstance(rejection.due, Reject):
        view.due, view.due_ms = instant(rejection.due), rejection.due
    original = rejection.original
    _put_body(view, text_of(original.body), size_of(original.body, {}))
    view.attributes = attributes_of(original.attributes)


def _put_body(view: MessageView, body: str, size: int) -> None:
    view.body, view.body_cut = body[:BODY_SHOWN], len(body) > BODY_SHOWN
    view.body_bytes = size


_STATES: Final[dict[EventKind, str]] = {
    EventKind.SENT: "was sent",
    EventKind.HOP: "hops through the delay queue",
    EventKind.FORWARDED: "waits in the parking queue for the store",
    EventKind.PARKED: "was parked",
    EventKind.RELEASED: "was released to its destination",
    EventKind.HANDED_OVER: "was handed over to its destination",
    EventKind.REJECTED: "was rejected; look at the error queue",
    EventKind.RECEIVED: "was received",
    EventKind.CANCELLED: "was cancelled",
    EventKind.RESCHEDULED: "was moved",
}


def _put_history(view: MessageView, history: History) -> None:
    events = history.events
    view.history = [event_of(event) for event in events]
    view.history_left_out = history.left_out
    if not history.whole:
        view.trouble.append("Ledger: only its last part was searched")
    if not events:
        return
    kinds = {event.kind: event for event in events}
    last = events[-1]
    view.state = _STATES[last.kind]
    view.where = "elsewhere"
    if EventKind.CANCELLED in kinds:
        view.where = "cancelled"
    arrived = _first(events, EventKind.HANDED_OVER, EventKind.RELEASED, EventKind.RECEIVED)
    if arrived is not None:
        view.where = "arrived"
        view.delivered, view.late_ms = instant(arrived.at_ms), arrived.late_ms
    dues = [event.due_ms for event in events if event.due_ms is not None]
    if dues:
        view.due, view.due_ms = instant(dues[-1]), dues[-1]
    sent = _first(events, EventKind.SENT)
    if sent is not None:
        view.sent, view.route = instant(sent.at_ms), sent.route
        view.parked = instant(sent.at_ms) if sent.route is Route.STORE else None
    parked, released = _first(events, EventKind.PARKED), _first(events, EventKind.RELEASED)
    view.parked = view.parked or (None if parked is None else instant(parked.at_ms))
    view.released = None if released is None else instant(released.at_ms)
    view.hops = history.hops


def _first(events: Sequence[Event], *kinds: EventKind) -> Event | None:
    return next((event for event in events if event.kind in kinds), None)


def cancelled(source: Source, chosen: Sequence[ChosenMessage]) -> Callable[[], Generator[Outcome]]:
    """Cancel messages, one by one."""

    def change(message: ChosenMessage) -> Outcome:
        answer = source.schedule().cancel(message.id, now_ms=source.latest_ms())
        return _outcome(message.id, answer, "cancelled", "cancels")

    return lambda: _each(source, chosen, change)


def moved(
    source: Source, chosen: Sequence[ChosenMessage], due_ms: int
) -> Callable[[], Generator[Outcome]]:
    """Give messages another due time, one by one.

    Raises:
        InvalidDelay: beyond what the endpoint takes.
    """
    problem = too_far(due_ms, source.latest_ms(), source.settings.max_delay_seconds)
    if problem is not None:
        raise InvalidDelay(problem)

    def change(message: ChosenMessage) -> Outcome:
        answer = source.schedule().reschedule(message.id, due_ms, now_ms=source.latest_ms())
        return _outcome(message.id, answer, f"moved to {instant(due_ms)}", "moves")

    return lambda: _each(source, chosen, change)


def released(source: Source, chosen: Sequence[ChosenMessage]) -> Callable[[], Generator[Outcome]]:
    """Make messages due now, one by one; who releases them does the rest."""

    def change(message: ChosenMessage) -> Outcome:
        now_ms = source.latest_ms()
        if source.place().find(message.id) is None:
            text = "not done: it is not in the store; it was released or cancelled meanwhile"
            return Outcome(message_id=message.id, result=Result.NOT_DONE, text=text)
        answer = source.schedule().reschedule(message.id, now_ms, now_ms=now_ms)
        return _outcome(message.id, answer, "due now: the dispatcher sends it next", "releases")

    return lambda: _each(source, chosen, change)


def _each(
    source: Source,
    chosen: Sequence[ChosenMessage],
    change: Callable[[ChosenMessage], Outcome],
) -> Generator[Outcome]:
    lost = 0
    for message in chosen:
        try:
            outcome = _as_seen(source, message) or change(message)
        except StoreUnavailable as error:
            lost += 1
            text = f"perhaps not done, look again: {error}"
            yield Outcome(message_id=message.id, result=Result.NOT_DONE, text=text)
            if lost == MOST_LOST:
                # One that hangs would take many seconds for each of the others.
                raise
        except SqsDelayError as error:
            text = f"not done: {error}"
            yield Outcome(message_id=message.id, result=Result.NOT_DONE, text=text)
        else:
            lost = 0
            yield outcome


def _as_seen(source: Source, message: ChosenMessage) -> Outcome | None:
    """Why a message is not changed: somebody else has moved it since it was looked at."""
    if message.due_ms is None:
        return None
    now = source.place().find(message.id)
    if now is None or now.due_ms == message.due_ms:
        return None
    return Outcome(
        message_id=message.id,
        result=Result.NOT_DONE,
        text=f"not done: it was moved meanwhile, and is due at {instant(now.due_ms)}; look again",
    )


def _outcome(message_id: str, change: Change, done: str, does: str) -> Outcome:
    if change is Change.DONE:
        return Outcome(message_id=message_id, result=Result.DONE, text=done)
    if change is Change.RELEASED:
        return Outcome(message_id=message_id, result=Result.NOT_DONE, text=_TOO_LATE)
    text = _ELSEWHERE.format(does=does)
    return Outcome(message_id=message_id, result=Result.REQUESTED, text=text)
