"""The documented causes of a duplicate, and which of them a journal shows for a given one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from sqsdelay.core.limits import DEDUPLICATION_INTERVAL_SECONDS, ERROR_QUEUE_SUFFIX, FIFO_SUFFIX
from sqsdelay.core.message import ERROR, WAS_DUE_AT, Attribute, text_of
from tests.simulation.journal import Action, Journal, Step
from tests.simulation.parcels import Parcel, key_of


class Cause(StrEnum):
    """Why a message was delivered once more. docs/reliability.md explains each; there are no others."""

    ANSWER_LOST = "answer lost"
    """The queue took the message, the sender of it was not told, and sent it again."""
    DIED = "died before the delete"
    """A consumer handed over and was killed before it deleted its copy."""
    DELETE_FAILED = "delete failed"
    """It handed over, its delete did not take effect, and another consumer received the copy."""
    HELD = "held too long"
    """It handed over later than its copy's visibility timeout; another had received the copy."""
    BOTH_WAYS = "delay queue, then destination"
    """It went to the delay queue, whose answer or the delete after it failed; tried again when less
    than a hop remained, it went to the destination as well."""
    AGAIN_LATE = "again after 5 minutes"
    """It went to a FIFO queue (the delay queue, or a FIFO destination), and the answer or the delete
    after it failed; tried again after the deduplication interval, it went there a second time."""
    CLAIM_BROKEN = "claim broken before its checkpoint"
    """A dispatcher sent a batch and could not note it in the store; or a store's answer was lost, and its
    messages were stored again."""


def forks(key: str, journal: Journal) -> list[tuple[Step, Step]]:
    """Where one message became two: pairs of sends of one copy, both of which made another one.

    Every delivery above the first has a fork of its own, so these bound the duplicates.
    """
    sent_on: dict[str | None, dict[str, Step]] = defaultdict(dict)
    for step in journal.of(key):
        if step.made is not None and not step.queue.endswith(ERROR_QUEUE_SUFFIX):
            sent_on[step.copy].setdefault(step.made, step)
    return [pair for sends in sent_on.values() for pair in pairwise(sends.values())]


def cause_of(first: Step, second: Step, journal: Journal) -> Cause | None:
    """Why a copy was sent on a second time; None if nothing documented explains it."""
    why = _why_not_settled(first, second, journal)
    if why is None or first.queue != second.queue:
        return why and Cause.BOTH_WAYS
    if not first.queue.endswith(FIFO_SUFFIX):
        return why
    apart_ms = _made_ms(second, journal) - _made_ms(first, journal)
    return Cause.AGAIN_LATE if apart_ms >= DEDUPLICATION_INTERVAL_SECONDS * 1000 else None


def _made_ms(send: Step, journal: Journal) -> int:
    """When the copy a send names was made: by itself, or by the one that deduplication compared it to."""
    return min(step.at_ms for step in journal.of(send.key) if step.made == send.made)


def _why_not_settled(first: Step, second: Step, journal: Journal) -> Cause | None:
    """Why the copy was there still, to be sent on a second time."""
    overtaken = not second.answered and second.asked_ms < first.at_ms
    if not first.answered or overtaken:
        return Cause.ANSWER_LOST
    deletes = [
        step
        for step in journal.of(first.key)
        if step.action is Action.DELETE
        and (step.party, step.copy) == (first.party, first.copy)
        and first.number < step.number < second.number
    ]
    if any(not step.acted for step in deletes):
        again = first.party == second.party
        return None if again and first.party in journal.remembering else Cause.DELETE_FAILED
    if first.party in journal.died and not deletes:
        return Cause.DIED
    received = _received(second, journal)
    if received is not None and not any(step.number < received for step in deletes):
        return Cause.HELD
    return None


def _received(send: Step, journal: Journal) -> int | None:
    """When a party had received the copy it sent on; None for the sender's own send."""
    numbers = [
        step.number
        for step in journal.of(send.key)
        if step.action is Action.RECEIVE
        and (step.party, step.copy) == (send.party, send.copy)
        and step.number < send.number
    ]
    return max(numbers, default=None)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A copy at the destination, and when it became visible there (broker's clock)."""

    body: str
    attributes: dict[str, Attribute]
    sqs_id: str
    visible_ms: int

    @property
    def key(self) -> str:
        return key_of(self.body)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What became of a scenario's messages.

    ``sent`` were accepted; of ``unknown`` ones the send raised, and they may arrive or not.
    ``rejected`` went to the error queue instead. ``duplicated`` are the deliveries above each
    message's first, ``undocumented`` the messages for whose duplicates the journal does not show
    as many documented causes.
    """

    sent: int
    unknown: int
    hops: int
    injected: int
    lost: Sequence[str] = ()
    early: Sequence[str] = ()
    altered: Sequence[str] = ()
    strange: Sequence[str] = ()
    rejected: int = 0
    duplicated: int = 0
    causes: Counter[Cause] = field(default_factory=Counter)
    undocumented: Sequence[str] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            sent=self.sent + other.sent,
            unknown=self.unknown + other.unknown,
            hops=self.hops + other.hops,
            injected=self.injected + other.injected,
            lost=[*self.lost, *other.lost],
            early=[*self.early, *other.early],
            altered=[*self.altered, *other.altered],
            strange=[*self.strange, *other.strange],
            rejected=self.rejected + other.rejected,
            duplicated=self.duplicated + other.duplicated,
            causes=self.causes + other.causes,
            undocumented=[*self.undocumented, *other.undocumented],
        )

    def check(self) -> None:
        """Fail unless the promise was kept.

        Raises:
            AssertionError: a message was lost, early or altered, or duplicated for no known cause.
        """
        assert not self.lost, f"lost: {self.lost}"
        assert not self.early, f"early: {self.early}"
        assert not self.altered, f"altered: {self.altered}"
        assert not self.strange, f"never sent, or otherwise wrong: {self.strange}"
        assert not self.undocumented, f"duplicated for no documented cause: {self.undocumented}"


def tally(
    sent: Iterable[Parcel],
    arrivals: Iterable[Arrival],
    rejected: Iterable[Arrival],
    journal: Journal,
    *,
    destination: str,
    delay_queue: str,
) -> Tally:
    """Count a scenario that has come to its end."""
    wanted = {parcel.key: parcel for parcel in sent}
    arrived: dict[str, Arrival] = {arrival.sqs_id: arrival for arrival in arrivals}
    at_destination = {arrival.key for arrival in arrived.values()}
    refused = {arrival.key for arrival in rejected if _says_why(arrival)}
    known = [arrival for arrival in arrived.values() if arrival.key in wanted]
    duplicates = _duplicates(sorted(at_destination), journal, destination)
    accepted = {key for key, parcel in wanted.items() if parcel.accepted}
    return Tally(
        sent=len(accepted),
        unknown=len(wanted) - len(accepted),
        hops=journal.hops(delay_queue),
        injected=journal.injected,
        lost=sorted(accepted - at_destination - refused),
        early=[_how_early(a, wanted[a.key]) for a in known if a.visible_ms < _due_ms(a, wanted)],
        altered=[a.key for a in known if wanted[a.key].altered(a.body, a.attributes)],
        strange=sorted(at_destination - set(wanted)),
        rejected=len(refused - at_destination),
        duplicated=duplicates.count,
        causes=duplicates.causes,
        undocumented=duplicates.undocumented,
    )


def _due_ms(arrival: Arrival, wanted: dict[str, Parcel]) -> int:
    """The due time a relayed message carries, or the earliest possible if that is later still."""
    told = text_of(arrival.attributes, WAS_DUE_AT)
    return max(wanted[arrival.key].due_ms, int(told or 0))


def _how_early(arrival: Arrival, parcel: Parcel) -> str:
    early_ms = _due_ms(arrival, {parcel.key: parcel}) - arrival.visible_ms
    return f"{arrival.key} by {early_ms} ms"


def _says_why(rejected: Arrival) -> bool:
    return ERROR in rejected.attributes


@dataclass(frozen=True, kw_only=True)
class _Duplicates:
    count: int
    causes: Counter[Cause]
    undocumented: list[str]


def _duplicates(keys: Iterable[str], journal: Journal, destination: str) -> _Duplicates:
    """Deliveries above the first, and the cause of each fork that led to them."""
    count = 0
    causes: Counter[Cause] = Counter()
    undocumented: list[str] = []
    for key in keys:
        extra = len(journal.sends(key, destination)) - 1
        if extra < 1:
            continue
        count += extra
        found = [cause_of(first, second, journal) for first, second in forks(key, journal)]
        if None in found or len(found) < extra:
            undocumented.append(key)
        causes.update(cause for cause in found if cause is not None)
    return _Duplicates(count=count, causes=causes, undocumented=undocumented)
