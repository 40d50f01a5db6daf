"""What all stores have in common: the version that each writes down; ids and pages of them; leases, which end
when their holder dies and are renewed while it lives; waking dispatchers; the clock all users share."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqsdelay.core.delay import BrokerClock, Clock, SystemClock, check_positive
from sqsdelay.core.message import due_ms_of_id
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import SchemaMismatch, StoreError
from sqsdelay.ports.stores import ParkingPlace

logger = logging.getLogger(__name__)

VERSION: Final = 1
"""Of all stores and inboxes of this sqsdelay."""

ID_TOLERANCE_MS: Final = 5_000
"""How much later than its id says a message may be due and still be found by it. Between a sender's
estimate and SentTimestamp lies the way to SQS."""

_NO_END: Final = 2**63 - 1
"""The largest integer of SQLite and of PostgreSQL's bigint."""

NO_START: Final = -(2**63)
"""The smallest: a row written by hand may be due before 1970, and is listed too."""


def check_version(found: int | None, name: str, kind: str = "table") -> None:
    """Raise SchemaMismatch for what is of another version: what its fields mean is not known here."""
    if found != VERSION:
        has = "no schema version" if found is None else f"schema version {found}"
        raise mismatch(name, f"it has {has}", kind)


def mismatch(name: str, why: object, kind: str = "table") -> SchemaMismatch:
    """The error for what this sqsdelay did not make."""
    return SchemaMismatch(
        f"{kind} {name} was made by another sqsdelay: {why}, and this one supports version {VERSION} "
        f"only; name another {kind}, and empty this one with the sqsdelay that made it"
    )


def tells_due(message_id: str, due_ms: int) -> bool:
    """Whether the id tells when the message is due, near enough to find it without anything else."""
    told = due_ms_of_id(message_id)
    return told is not None and 0 <= due_ms - told <= ID_TOLERANCE_MS


def needs_lookup(message: StoredMessage, *, lookup: bool) -> bool:
    """Whether something besides its id is to tell when a message is due, so that it can be found by its id.
    An id made up by sqsdelay can always be found. So that is so whatever ``lookup`` says if it tells another
    due time: of a message that was moved before it came here, or by a wrong clock."""
    wanted = lookup or due_ms_of_id(message.message_id) is not None
    return wanted and not tells_due(message.message_id, message.due_ms)


def page_bounds(
    after: tuple[int, str] | None, due_from_ms: int | None, due_before_ms: int | None
) -> tuple[int, str, int]:
    """Due time and id the page comes after, and the due time it ends before. No id is empty, so what is due
    from an instant on comes after that instant with an empty id."""
    first = NO_START if due_from_ms is None else due_from_ms
    start = max(after or (NO_START, ""), (first, ""))
    return (*start, _NO_END if due_before_ms is None else due_before_ms)


class Pages:
    """A store that lists what it keeps by page."""

    def pending(
        self,
        limit: int,
        *,
        after: tuple[int, str] | None = None,
        due_from_ms: int | None = None,
        due_before_ms: int | None = None,
    ) -> list[StoredMessage]:
        return self._page(limit, *page_bounds(after, due_from_ms, due_before_ms))

    @abstractmethod
    def _page(self, limit: int, from_ms: int, from_id: str, before_ms: int) -> list[StoredMessage]:
        """What is due after this due time and id, and before the other; by both."""


def new_once(messages: Sequence[StoredMessage], inserted: Iterable[str]) -> list[bool]:
    """Whether each message is new; an id given twice in one call is new once."""
    left = set(inserted)
    new = []
    for message in messages:
        new.append(message.message_id in left)
        left.discard(message.message_id)
    return new


DEFAULT_LEASE_SECONDS: Final = 60.0
"""How long a dead dispatcher's messages stay held. Renewed every third of it, so that clocks of
dispatchers may differ by some 40 seconds."""


def checked_lease(seconds: float) -> float:
    """``seconds`` itself, if a lease can be that long; else raises ConfigurationError."""
    check_positive(lease_seconds=seconds)
    return seconds


@contextmanager
def kept_alive(renew: Callable[[], None], *, lease_seconds: float) -> Iterator[None]:
    """Call ``renew`` every third of the lease, from another thread, while the context lasts."""
    over = threading.Event()
    pause = lease_seconds / 3

    def keep() -> None:
        while not over.wait(pause):
            try:
                renew()
            except StoreError as error:
                logger.warning("lease not renewed, trying again: %s", one_line(error))

    keeper = threading.Thread(target=keep, name="lease-keeper", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


class HoldingClaim:
    """A claim in which one change holds messages, and counts a failure or none."""

    @abstractmethod
    def _hold(self, message_ids: Sequence[str], seconds: float, failed: int) -> list[bool]:
        """Keep them from being claimed for so long, with so much added to their failures."""

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        return self._hold(message_ids, retry_after_seconds, 1)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._hold(message_ids, seconds, 0)


class Wakes:
    """A store that wakes the dispatchers of its own process."""

    def __init__(self) -> None:
        self._watchers: list[Callable[[], None]] = []

    @contextmanager
    def watch(self, wake: Callable[[], None]) -> Iterator[None]:
        """Wakes for what this object stores; other processes' messages are found by polling."""
        self._watchers.append(wake)
        try:
            yield
        finally:
            self._watchers.remove(wake)

    def _wake(self) -> None:
        for wake in list(self._watchers):
            wake()


class StoreClock:
    """The clock all users of one store share: its server's, or where it is a file the machine's. The server
    is asked every five minutes; between, the monotonic clock tells what has passed. While it cannot be asked
    the local clock stands in."""

    def __init__(self, store: ParkingPlace, local: Clock | None = None) -> None:
        self._store = store
        self._learned = BrokerClock(local or SystemClock())

    def now_ms(self) -> int:
        """The store's now, epoch milliseconds, never ahead of it: nothing due by it is early."""
        if not self._learned.synchronised:
            try:
                told_ms = self._store.now_ms()
            except StoreError as error:
                told_ms = None
                text = "using the local clock, because the store cannot be reached: %s"
                logger.warning(text, one_line(error))
            if told_ms is not None:
                self._learned.observe(told_ms)
        return self._learned.now_ms()

    def latest_ms(self) -> int:
        """The most the store's clock may read now, epoch milliseconds: what a delay counts from. Raises
        StoreUnavailable, StoreMissing: the server cannot be asked."""
        asked_at = self.monotonic()
        told_ms = self._store.now_ms()
        if told_ms is None:
            return self._learned.local.now_ms()
        return told_ms + int((self.monotonic() - asked_at) * 1000) + 1

    def monotonic(self) -> float:
        return self._learned.local.monotonic()
