"""What becomes of a claim: released and removed, counted and tried later, held, or rejected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sqsdelay.core.backoff import retry_seconds
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.destinations import NOT_TRIED, Destinations, Outcome
from sqsdelay.dispatching.recording import ReleaseRecorder
from sqsdelay.dispatching.waiting import OUTAGE_PAUSE_SECONDS
from sqsdelay.errors import StoreError
from sqsdelay.ports.queues import Failure
from sqsdelay.ports.stores import Claim, TransactionMode

logger = logging.getLogger(__name__)


class Destination(Protocol):
    """Where a dispatcher delivers what it has claimed: to an outbox, or in the store's own database."""

    @property
    def mode(self) -> TransactionMode:
        """What the store must be able to give."""
        ...

    @property
    def max_ahead_seconds(self) -> int:
        """The longest message timer, 0 where there is none."""
        ...

    def check(self) -> None:
        """Check at the start whether it can be used; see `Outbox.check`."""
        ...

    def now_ms(self) -> int:
        """Now by the clock that due times are measured with, epoch milliseconds."""
        ...

    def deliver(self, claim: Claim) -> Sequence[Outcome]:
        """Deliver the claim's messages, except unreadable rows; an outcome for each."""
        ...

    def reject(
        self, claim: Claim, messages: Sequence[tuple[StoredMessage, str]]
    ) -> list[Failure | None]:
        """Put messages of the claim where a person will find them, with the reason."""
        ...

    def forget(self, messages: Iterable[StoredMessage]) -> None:
        """They were released and have left the store for good."""
        ...


@dataclass(slots=True)
class Round:
    """The result of one claim. ``held`` wait for an outage to pass, ``failed`` for a retry.

    What was claimed and is in none of the lists was not tried: its destination is out of reach.
    ``outage`` is why a destination or the error queue could not be used, where that was so.
    """

    claimed: int = 0
    released: list[StoredMessage] = field(default_factory=list)
    rejected: list[StoredMessage] = field(default_factory=list)
    failed: list[StoredMessage] = field(default_factory=list)
    held: list[StoredMessage] = field(default_factory=list)
    now_ms: int = 0
    outage: Exception | None = None

    @property
    def settled(self) -> bool:
        """True if the store has become emptier, so that it is worth going on at once."""
        return bool(self.released or self.rejected)

    def late_ms(self) -> list[int]:
        """For each released message, how long after its due time it was sent; 0 if ahead of it."""
        return [max(0, self.now_ms - message.due_ms) for message in self.released]


class Settlement:
    """Settles one claim after the other.

    Args:
        destination: takes what is rejected.
        destinations: what is known of those that are out of reach.
        recorder: told what was rejected.
        number_of_retries: after the first attempt on a message.
        on_lost_count: called with the store's error when a failed attempt cannot be counted.
    """

    def __init__(
        self,
        destination: Destination,
        destinations: Destinations,
        recorder: ReleaseRecorder,
        *,
        number_of_retries: int,
        on_lost_count: Callable[[StoreError], None],
    ) -> None:
        self._destination = destination
        self._destinations = destinations
        self._recorder = recorder
        self._number_of_retries = number_of_retries
        self._on_lost_count = on_lost_count

    def settle(self, claim: Claim, outcomes: Sequence[Outcome], done: Round) -> None:
        """Remove what was released; count, hold or reject the rest.

        Raises:
            StoreError, CriticalError: the store failed; what was not removed is claimed again.
        """
        done.released = [
            message
            for message, outcome in zip(claim.messages, outcomes, strict=True)
            if not isinstance(outcome, Failure)
        ]
        refused: list[tuple[StoredMessage, Failure]] = []
        if len(done.released) < len(outcomes):
            refused = _refused(claim.messages, outcomes, done)
        if done.released:
            removed = claim.remove(_ids(done.released))
            if not all(removed):
                # A lease was lost: the process was frozen, or the store away, for longer than it.
                logger.warning("%d messages may be sent twice", removed.count(False))
        closed = self._destinations.out_of_reach()
        passing = [message for message in done.held if message.destination not in closed]
        if passing:
            # Others to the same destination were sent: these alone wait for a moment.
            claim.hold(_ids(passing), seconds=OUTAGE_PAUSE_SECONDS)
        self._settle_refused(claim, refused, done)

    def _settle_refused(
        self, claim: Claim, refused: list[tuple[StoredMessage, Failure]], done: Round
    ) -> None:
        hopeless: list[tuple[StoredMessage, str]] = []
        for message, failure in refused:
            logger.warning(
                "message %s not released: %s", one_line(message.message_id), one_line(failure.error)
            )
            if failure.transient and message.failures < self._number_of_retries:
                self._count_failure(claim, message, done)
            else:
                hopeless.append((message, f"{failure.code}: {failure.error}"))
        if not hopeless:
            return
        rejections = self._destination.reject(claim, hopeless)
        self._recorder.rejected(hopeless, rejections)
        for (message, _), failed in zip(hopeless, rejections, strict=True):
            if failed is None:
                done.rejected.append(message)
            else:
                logger.error(
                    "message %s not rejected: %s",
                    one_line(message.message_id),
                    one_line(failed.error),
                )
                if failed.transient:
                    # The error queue is away or missing; a message it refuses is no outage of it.
                    done.outage = failed.error
                self._count_failure(claim, message, done)
        claim.remove(_ids(done.rejected))

    def _count_failure(self, claim: Claim, message: StoredMessage, done: Round) -> None:
        done.failed.append(message)
        try:
            claim.count_failures(
                [message.message_id], retry_after_seconds=retry_seconds(message.failures)
            )
        except StoreError as error:
            self._on_lost_count(error)
            raise


def _refused(
    messages: Sequence[StoredMessage], outcomes: Sequence[Outcome], done: Round
) -> list[tuple[StoredMessage, Failure]]:
    """What failed by itself; notes what an outage holds up."""
    refused = []
    for message, outcome in zip(messages, outcomes, strict=True):
        if not isinstance(outcome, Failure) or outcome is NOT_TRIED:
            continue
        if outcome.outage:
            done.held.append(message)
            done.outage = outcome.error
        else:
            refused.append((message, outcome))
    return refused


def _ids(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.message_id for message in messages]
