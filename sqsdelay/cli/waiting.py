"""``sqsdelay pending``, ``cancel`` and ``reschedule``: messages that wait to become due."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sqsdelay.cli.advice import about
from sqsdelay.cli.console import print_json, print_rows, say, tell
from sqsdelay.cli.options import (
    DEFAULT_MAX_DELAY,
    Delay,
    DueAt,
    EndpointName,
    JsonLines,
    LedgerFile,
    MaxDelay,
    PlaceUrl,
    ReleasedTo,
    max_delay_seconds,
    opened_ledger,
    opened_place,
)
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.delay import due_at_ms, due_time, parse_delay, parse_due_at, too_far
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import instant
from sqsdelay.core.stored_message import StoredMessage, check_stored_id
from sqsdelay.errors import (
    ConfigurationError,
    InvalidDelay,
    InvalidMessage,
    QueueMissing,
    QueueUnavailable,
    SqsDelayError,
)
from sqsdelay.operating.status import Cursor, Listing, latest_of_sqs, parse_cursor
from sqsdelay.parking.schedule import Change, Schedule

if TYPE_CHECKING:
    from sqsdelay.ports.stores import ParkingPlace
    from sqsdelay.sqs.queues import SqsQueues


class DueClock:
    """The clock of those who release an endpoint's messages.

    Args:
        endpoint: where they are released to.
        store: where they wait.
        store_url: its URL.
        to: the RabbitMQ they are released to; None is SQS.
    """

    def __init__(self, endpoint: str, store: ParkingPlace, store_url: str, to: str | None) -> None:
        self._endpoint = Endpoint.parse(endpoint)
        self._store = store
        self._only_sqs = store_url.startswith(("dynamodb:", "scheduler:"))
        self._sqs: SqsQueues | None = None
        self._ask_sqs = to is None

    def latest_ms(self) -> int:
        """The most that clock may read now, epoch milliseconds.

        Raises:
            ConfigurationError, QueueUnavailable: SQS cannot be asked.
            StoreUnavailable, StoreMissing: the database cannot be asked.
        """
        if self._ask_sqs:
            try:
                return self._latest_of_sqs()
            except ConfigurationError as error:
                if self._only_sqs:
                    raise
                self._ask_sqs = False
                line = f"the delay counts from the store's clock, because SQS cannot be reached: {error}"
                tell(line)
        from sqsdelay.stores.clocks import StoreClock

        return StoreClock(self._store).latest_ms()

    def _latest_of_sqs(self) -> int:
        from sqsdelay.sqs.client import default_client
        from sqsdelay.sqs.queues import SqsQueues

        if self._sqs is None:
            self._sqs = SqsQueues(default_client(connections=1))
        try:
            return latest_of_sqs(self._sqs, self._endpoint.queue)
        except (QueueMissing, QueueUnavailable) as error:
            raise QueueUnavailable(
                f"SQS did not give its time, from which the delay counts: {error}; give "
                "--due-at, or --to if the store is released to RabbitMQ"
            ) from error


def new_due_ms(delay: str | None, due_at: str | None, *, now_ms: Callable[[], int]) -> int:
    """The due time that --delay or --due-at names, epoch milliseconds.

    Args:
        now_ms: what a delay counts from; asked for a delay only.

    Raises:
        BadParameter: both or none of them.
        InvalidDelay
    """
    if (delay is None) == (due_at is None):
        raise typer.BadParameter("give either --delay or --due-at")
    due = due_time(
        None if delay is None else parse_delay(delay),
        None if due_at is None else parse_due_at(due_at),
    )
    return due.due_ms(0 if due.absolute else now_ms())


EXIT_REQUESTED: Final = 3
"""Some messages were not in the store: their change is left to the delay consumer."""

TABLE_ROWS: Final = 1_000
"""Messages listed in one table."""

_OUTCOMES: Final = {
    Change.DONE: "{done}",
    Change.RELEASED: "too late: it is being released right now",
    Change.REQUESTED: "not in the store; if it is in the delay queue, it will be {done} at its next "
    "hop; if it was released or never sent, nothing happens",
}


def pending(
    endpoint: EndpointName,
    store: PlaceUrl,
    limit: Annotated[int, typer.Option(min=1, help="How many to list, earliest first.")] = 50,
    due_from: Annotated[
        str | None, typer.Option(help="List only messages due at or after 2027-01-31T09:00:00Z.")
    ] = None,
    due_before: Annotated[
        str | None, typer.Option(help="List only messages due before 2027-02-01T00:00:00Z.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Continue after this cursor, printed below the last page.")
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """List the messages in a store by due time.

    If there are more, it prints a cursor for --after.

    SQS cannot list the messages in the delay queue.
    """
    listing = Listing(
        after=None if after is None else _cursor(after),
        due_from_ms=_time("--due-from", due_from),
        due_before_ms=_time("--due-before", due_before),
    )
    with opened_place(Endpoint.parse(endpoint).name, store) as opened:
        if as_json:
            for message in listing.read(opened, limit):
                print_json(_as_json(message))
        else:
            _print_tables(listing.read(opened, limit))
            line = f"{listing.listed} of {opened.pending_count()} pending"
            say(line)
        more = listing.has_more(opened)
    if more:
        # Not among the lines that programs read.
        line = f"more: --after {shlex.quote(listing.cursor)}"
        tell(line)


def _checked_ids(given: list[str] | str) -> list[str] | str:
    """
    Raises:
        BadParameter: one of them cannot be a message's.
    """
    for message_id in [given] if isinstance(given, str) else given:
        try:
            check_stored_id(message_id)
        except InvalidMessage as error:
            raise typer.BadParameter(about(error, repr(message_id))) from error
    return given


def cancel(
    endpoint: EndpointName,
    message_ids: Annotated[
        list[str], typer.Argument(help="The message ids.", callback=_checked_ids)
    ],
    store: PlaceUrl,
    to: ReleasedTo = None,
    ledger: LedgerFile = None,
    as_json: JsonLines = False,
) -> None:
    """Cancel messages by id.

    Those that are not in the store are left to the delay consumer.

    Exit code 1 if any is being released; otherwise 3 if any was not in the store.
    """
    name, book = Endpoint.parse(endpoint).name, opened_ledger(ledger)
    with opened_place(name, store) as opened:
        clock = DueClock(endpoint, opened, store, to)
        now_ms = sqs_latest_ms(endpoint) if to is None else clock.latest_ms()
        schedule = Schedule(opened, endpoint=name, ledger=book)
        changes = {i: schedule.cancel(i, now_ms=now_ms) for i in message_ids}
    _tell(changes, "cancelled", as_json=as_json)


def reschedule(
    endpoint: EndpointName,
    message_id: Annotated[str, typer.Argument(help="The message id.", callback=_checked_ids)],
    store: PlaceUrl,
    delay: Delay = None,
    due_at: DueAt = None,
    max_delay: MaxDelay = DEFAULT_MAX_DELAY,
    to: ReleasedTo = None,
    ledger: LedgerFile = None,
    as_json: JsonLines = False,
) -> None:
    """Give a message another due time.

    If it is not in the store, that is left to the delay consumer.

    --delay counts from SQS's clock, or with --to from the store's.
    Exit code 1 if the message is being released, 3 if it was not in the store.
    """
    most = max_delay_seconds(max_delay)
    name, book = Endpoint.parse(endpoint).name, opened_ledger(ledger)
    with opened_place(name, store) as opened:
        clock = DueClock(endpoint, opened, store, to)
        due_ms = new_due_ms(delay, due_at, now_ms=clock.latest_ms)
        now_ms = sqs_latest_ms(endpoint) if to is None else clock.latest_ms()
        problem = too_far(due_ms, now_ms, most)
        if problem is not None:
            raise InvalidDelay(problem)
        schedule = Schedule(opened, endpoint=name, ledger=book)
        change = schedule.reschedule(message_id, due_ms, now_ms=now_ms)
    _tell({message_id: change}, f"moved to {instant(due_ms)}", as_json=as_json)


def sqs_latest_ms(endpoint: str) -> int:
    """The latest that SQS's clock may read: an amendment applies to what was sent by then.

    Without SQS it is this machine's clock, which is enough for messages in the store.
    """
    from botocore.exceptions import BotoCoreError

    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.queues import SqsQueues

    try:
        return latest_of_sqs(
            SqsQueues(default_client(connections=1)), Endpoint.parse(endpoint).queue
        )
    except (SqsDelayError, BotoCoreError) as error:
        line = f"using this machine's clock, because SQS did not give its time: {error}"
        tell(line)
        return SystemClock().now_ms()


def _time(option: str, text: str | None) -> int | None:
    """Epoch milliseconds.

    Raises:
        BadParameter: it is no time with its offset.
    """
    try:
        return None if text is None else due_at_ms(parse_due_at(text))
    except InvalidDelay as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _cursor(text: str) -> Cursor:
    """
    Raises:
        BadParameter: it is none that was printed.
    """
    try:
        return parse_cursor(text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--after") from error


def _print_tables(messages: Iterable[StoredMessage]) -> None:
    """A table for every thousand, so that any number of them takes the memory of as many."""
    rows = ((instant(m.due_ms), m.message_id, str(len(m.body)), str(m.failures)) for m in messages)
    first = True
    while (some := list(islice(rows, TABLE_ROWS))) or first:
        first = False
        print_rows(("due", "message id", "bytes", "failures"), some)


def _as_json(message: StoredMessage) -> dict[str, object]:
    return {
        "message_id": message.message_id,
        "destination": message.destination,
        "due": instant(message.due_ms),
        "bytes": len(message.body),
        "failures": message.failures,
    }


def _tell(changes: dict[str, Change], done: str, *, as_json: bool) -> None:
    for message_id, change in changes.items():
        if as_json:
            print_json({"message_id": message_id, "change": change})
            continue
        line = _OUTCOMES[change].format(done=done)
        say(f"{message_id}  {line}")
    if Change.RELEASED in changes.values():
        raise typer.Exit(1)
    if Change.REQUESTED in changes.values():
        raise typer.Exit(EXIT_REQUESTED)
