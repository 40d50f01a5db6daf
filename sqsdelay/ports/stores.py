"""Where messages wait: a place to park in, and the delayed message store, which releases them too.

A class of yours derives from one of the two; ``sqsdelay.testing.ParkingContract`` tests a place,
``StoreContract`` a store.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from sqsdelay.core.stored_message import Amendment, StoredMessage


class TransactionMode(StrEnum):
    """How removing a released message relates to its effect."""

    AT_LEAST_ONCE = "at-least-once"
    """Claim and removal share the store's transaction (or lease); the send is outside of it."""

    EXACTLY_ONCE = "exactly-once"
    """The effect is written in the store's own transaction and commits with the removal."""


class Claim(Protocol):
    """Due messages held for one dispatcher, until its context ends.

    Then removals and counts are committed, and what is neither removed nor held is free again. Where it
    ends by an exception they may be undone (exactly once: they are). When the process dies the messages
    come free by themselves. Lists answer per id, in order: False means that the message was no longer there
    or no longer ours. All methods raise StoreUnavailable.
    """

    @property
    def messages(self) -> Sequence[StoredMessage]:
        """The claimed messages, earliest due first."""

    @property
    def transaction(self) -> Any:
        """Exactly once: the store's open transaction (its driver's connection). Else None."""

    def attempt(self) -> AbstractContextManager[None]:
        """Exactly once: what is done inside is undone if it raises, and the claim still holds."""

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """Remove released messages. (NServiceBus's ``Remove``.)"""

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        """Add one to each message's failures; not claimable again before ``retry_after_seconds``.

        (NServiceBus's ``IncrementFailureCount``.)
        """

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        """Keep messages from being claimed for ``seconds``, without counting a failure."""


class ParkingPlace(Protocol):
    """Keeps messages until they are due; they can be listed, cancelled and rescheduled. Thread-safe.

    How they are released is up to the place. One with a dispatcher is a `DelayedMessageStore`.

    A place serves one endpoint, named when it is made. Times are epoch milliseconds, UTC. Every
    method that asks the service raises StoreUnavailable when it cannot be reached now, and
    StoreMissing when it is not set up.
    """

    @abstractmethod
    def set_up(self) -> None:
        """Create what the store needs, where it is missing. (``SetupInfrastructure``.) Raises
        SchemaMismatch: what is there was made by another sqsdelay."""

    @abstractmethod
    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        """Keep messages; True per message that is new, False where its id is already stored.

        All are stored, or an error is raised; StoredInPart says which were. The same call again is
        safe. (``Store``.)

        Args:
            transaction: the caller's open transaction in the store's database (the driver's
                connection), to store with it; dispatchers are woken when it commits.

        Raises:
            ConfigurationError: a ``transaction`` given to a store that has none.
            MessageTooLarge: above what the store keeps.
        """

    @abstractmethod
    def pending_count(self) -> int:
        """The number of stored messages."""

    @abstractmethod
    def pending(
        self,
        limit: int,
        *,
        after: tuple[int, str] | None = None,
        due_from_ms: int | None = None,
        due_before_ms: int | None = None,
    ) -> list[StoredMessage]:
        """Stored messages by due time and id: one page.

        Args:
            after: ``(due_ms, message_id)`` of the last message of the page before.
            due_from_ms, due_before_ms: leave out what is due before; then or later.
        """

    @abstractmethod
    def find(self, message_id: str) -> StoredMessage | None:
        """The stored message, whether or not it is being released; None when it is not there."""

    @abstractmethod
    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        """Remove messages that are not being released; False where it is too late, or unknown."""

    @abstractmethod
    def reschedule(self, message_id: str, due_ms: int) -> bool:
        """Move a message that is not being released; False where it is too late, or unknown. Raises
        InvalidMessage: a due time outside 1970 to 9999."""

    @abstractmethod
    def amend(self, amendments: Sequence[Amendment]) -> None:
        """Keep amendments until their ``until_ms``, the latest of each message.

        A later one replaces the one before but keeps its cancellation (`Amendment.after`). An amendment is
        no message: it is never claimed, and the message it applies to need not be stored.
        """

    @abstractmethod
    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of those messages that have one, by message id."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. The store cannot be used afterwards."""

    @property
    def stored_at_once(self) -> int | None:
        """Messages worth one call of ``store``, where many cost as much as one; None where they do not."""
        return None

    @property
    def soonest_seconds(self) -> int:
        """How far ahead a message must be due to be kept, in seconds."""
        return 0

    @property
    def fires(self) -> bool:
        """Whether what is due soon comes by itself, into the endpoint's parking queue."""
        return False

    def now_ms(self) -> int | None:
        """The now of the server that it is on, epoch milliseconds; None where the machine's clock counts."""
        return None

    def too_large(self, message: StoredMessage) -> bool:  # noqa: ARG002
        """Whether a message, which SQS takes, is too large to keep; makes no call."""
        return False

    def find_due(self, message_id: str, due_ms: int) -> StoredMessage | None:  # noqa: ARG002
        """As ``find``; where the id alone is not enough, the message of that id that is due then."""
        return self.find(message_id)

    def count_due(self, from_ms: int, before_ms: int) -> int | None:  # noqa: ARG002
        """Stored messages due at ``from_ms`` or later, and before ``before_ms``; None where that would take
        reading them."""
        return None


@runtime_checkable
class DelayedMessageStore(ParkingPlace, Protocol):
    """A `ParkingPlace` from which a dispatcher claims due messages.

    A store whose tables may change from one version to the next writes their version down. Every method
    refuses tables of another version with SchemaMismatch.
    """

    @property
    @abstractmethod
    def modes(self) -> frozenset[TransactionMode]:
        """The transaction modes this store can give."""

    @property
    @abstractmethod
    def poll_seconds(self) -> float:
        """How often a dispatcher should look even if nothing wakes it."""

    @abstractmethod
    def initialize(self, mode: TransactionMode) -> None:
        """Make ready to be claimed from in ``mode``. (``Initialize``.) Raises ConfigurationError: the store
        cannot give this mode; SchemaMismatch: its tables are of another version; StoreMissing,
        StoreUnavailable."""

    @abstractmethod
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> AbstractContextManager[Claim]:
        """Claim up to ``limit`` messages that are due by ``due_by_ms``, the earliest first.

        No other healthy claimant gets them meanwhile. (``FetchNextDueTimeout``.)

        Args:
            except_destinations: messages to these are passed over, and do not count. A store may then
                take an equal share for each of the others, instead of the earliest of all, and so
                fewer than ``limit``; of each that has something due, something.
        """

    @abstractmethod
    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        """When the earliest message is due that nobody holds, those to ``except_destinations`` passed
        over; None when there is none. (``Next``.) It may name one that is being claimed at this moment."""

    @abstractmethod
    def watch(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """While the context lasts, call ``wake`` (from any thread) when a message was stored or
        moved that may be due before all others. Superfluous calls are harmless."""


@runtime_checkable
class ClaimsIds(Protocol):
    """A `DelayedMessageStore` that claims messages by their ids. Its claims have ``again``: the ids of their
    messages that were held before; and ``busy``: those asked for by id that somebody has now."""

    def claim_ids(self, message_ids: Sequence[str]) -> AbstractContextManager[Claim]:
        """Claim these messages, due or not, held or not; those that somebody has now are left out. What is
        neither removed nor held when the claim ends is held as long as before."""


@runtime_checkable
class Movable(ParkingPlace, Protocol):
    """A store whose messages can be sent another way, beside its dispatchers. A message that was taken is no
    longer cancelled, rescheduled or taken by others, whatever becomes of the taker. A dispatcher claims it
    when it is due, but not within a minute."""

    def take(
        self, limit: int, *, due_from_ms: int, after: tuple[int, str] | None = None
    ) -> list[StoredMessage]:
        """Take messages that nobody holds, by due time and id: one page. The arguments are those of
        `ParkingPlace.pending`."""

    def taken(self, limit: int, *, after: tuple[int, str] | None = None) -> list[StoredMessage]:
        """Messages that were taken before, and neither removed nor put back: one page."""

    def remove_taken(self, message_ids: Sequence[str]) -> list[bool]:
        """Remove messages that were taken; False where a dispatcher has got it meanwhile."""

    def put_back(self, message_ids: Sequence[str]) -> None:
        """Leave messages that were taken to the dispatchers again."""

    def all_amendments(self, limit: int, *, after_id: str = "") -> list[Amendment]:
        """The amendments kept, by message id: one page, after that of the message of that id."""
