"""Counting a scenario: every accepted message arrived or was rejected, none early, none altered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqsdelay.core.message import ERROR, WAS_DUE_AT, Attribute, text_of
from tests.simulation.causes import Cause, cause_of, forks
from tests.simulation.journal import Journal
from tests.simulation.parcels import Parcel, key_of


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
        assert not self.strange, f"never sent: {self.strange}"
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
