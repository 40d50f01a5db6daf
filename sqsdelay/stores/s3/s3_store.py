"""`S3Store`: parked messages in a bucket, many to an object, by the slot of their due time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, compress, groupby, takewhile
from math import inf
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.core.delay import Clock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ports.stores import Claim, DelayedMessageStore, TransactionMode
from sqsdelay.stores import shared
from sqsdelay.stores.calls import check_no_transaction
from sqsdelay.stores.s3 import layout
from sqsdelay.stores.s3.bucket import Changed, ObjectBucket
from sqsdelay.stores.s3.changes import Changes
from sqsdelay.stores.s3.leases import S3Claim, Turner
from sqsdelay.stores.s3.wheel import Present, Waiting, Wheel, portions
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS, Pages, kept_alive

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

GATHER_MS: Final = 600_000
"""How long a message that could be released may wait for others to be released with it; never longer than two
thirds of how far ahead messages are released."""

TURN_SECONDS: Final = 60
"""How often a dispatcher looks whether slots have come near, while none have."""

TURN_MS: Final = 15_000
"""How long it goes on splitting and merging before it looks for what is due."""

ENDED_SECONDS: Final = 45
"""A turn of so long, its last chunk included, has ended: none is begun where less time is left."""

BUSY_TURN_SECONDS: Final = 300
"""How often it does so where something is due all the time."""

SWEEP_SECONDS: Final = 86_400
"""How often it forgets what was decided about batches of which nothing is left."""

_SWEPT: Final = 1_000
"""Decisions, and as many objects of jobs, that it looks at then; and at more while it has time."""

_FRESH_MS: Final = 5_000
"""How old a listing may be for those who ask again at once."""


class S3Store(Changes, Pages, DelayedMessageStore):
    """Delayed messages in an S3 bucket, which several endpoints may share. docs/s3-store.md says how. A page
    of `pending` reads the objects that may hold a part of it: for people, not for loops. All that share the
    last message's due time and id are on it: it may be longer.

    Args:
        bucket: its name.
        endpoint: whose messages these are.
        prefix: of all keys.
        client: a boto3 S3 client; made from the default session when left out.
        slots: the lengths of slots in seconds, the longest first, each a multiple of the next.
        lookup: write an object for each message whose id the user gave, so that it can be found,
            cancelled and moved by it, and is stored once. It costs a PUT a message. Ids that sqsdelay
            generates need none.
        lease_seconds: how long the objects of a dispatcher that died stay held.
        clock: tests only: S3's own time is read from its answers.

    Raises:
        ConfigurationError: a setting out of range.
    """

    poll_seconds: Final = 60.0
    modes: Final = frozenset({TransactionMode.AT_LEAST_ONCE})
    stored_at_once: Final = 10_000
    """Messages worth one call: a call writes an object for each slot it meets."""

    gather_ms = GATHER_MS
    seconds_left: Callable[[], float] = staticmethod(lambda: inf)
    """How long this process may run; set it where that is known."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str,
        prefix: str = "",
        client: S3Client | None = None,
        slots: Sequence[int] = layout.DEFAULT_SLOTS,
        lookup: bool = False,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        hierarchy = layout.Hierarchy(slots)
        self._bucket = ObjectBucket(bucket, client, clock)
        self.client = self._bucket.client
        self._wheel = Wheel(self._bucket, endpoint, prefix=prefix, hierarchy=hierarchy)
        self._lease_ms = round(shared.checked_lease(lease_seconds) * 1000)
        self._turner = Turner(self._wheel, lease_ms=self._lease_ms)
        self._lookup = lookup
        self._now_ms = self._wheel.now_ms
        self._seen: tuple[int, int, list[Waiting]] = (-(10**12), 0, [])
        self._ahead_ms = 0
        self._turn_ms = 1000 * min(TURN_SECONDS, hierarchy.seconds[-1])
        self._turned_ms = -(10**12)
        self._begun_ms = 0
        self._more_to_turn = False
        self._swept_ms = -(10**12)

    def set_up(self) -> None:
        """Create the bucket unless it exists.

        Raises:
            SchemaMismatch: what is there was made by another sqsdelay.
        """
        self._bucket.create()
        self._wheel.check_version()

    def initialize(self, mode: TransactionMode) -> None:
        check_no_transaction("an S3 store", mode)
        self._bucket.check()
        self._wheel.check_version()

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        """Keep messages: an object for each slot, or none at all.

        Without ``lookup`` an id is no key: messages that differ in anything are different ones, and what
        is stored again for the same due time is one only once its slot's objects are merged. What is not
        known to be there already is answered True."""
        check_no_transaction("an S3 store", None, transaction)
        self._wheel.check_version()
        looked_up = [shared.needs_lookup(message, lookup=self._lookup) for message in messages]
        by_id: dict[str, StoredMessage] = {}
        for message in compress(messages, looked_up):
            by_id.setdefault(message.message_id, message)
        announced = self._bucket.each(self._announce, by_id.values())
        free = {id(message) for message in compress(by_id.values(), announced)}
        lines: dict[layout.Line, None] = {}
        new = []
        for message, noted in zip(messages, looked_up, strict=True):
            line = layout.line_of(message, found_by_id=noted)
            new.append(line not in lines and (not noted or id(message) in free))
            if new[-1]:
                lines[line] = None
        if lines:
            self._wheel.write(list(lines))
            self._forget()
            self._wake()
        return new

    @contextmanager
    def claim(
        self, limit: int, *, due_by_ms: int, except_destinations: Collection[str] = ()
    ) -> Iterator[Claim]:
        """Claim the earliest messages of objects that nobody has, in the order of each one's earliest."""
        now_ms = self._wheel.now_ms()
        claim = S3Claim(self._wheel, self._lease_ms, limit, due_by_ms, except_destinations)
        self._ahead_ms = max(0, due_by_ms - now_ms)
        turns = self._more_to_turn or not 0 <= now_ms - self._turned_ms < self._turn_ms
        self._begun_ms = self._begun_ms or now_ms
        since_ms = now_ms - max(self._turned_ms, self._begun_ms)
        overdue = not 0 <= since_ms < BUSY_TURN_SECONDS * 1000
        try:
            objects = self._take(claim, max(self._near_ms(), due_by_ms) if turns else due_by_ms)
            if not claim.messages and turns and self._turn(objects, claim.closed):
                self._take(claim, due_by_ms)
            claim.make_sure()
            claim.messages.sort(key=lambda m: (m.due_ms, m.message_id))
            if not claim.messages:
                yield claim
                return
            with kept_alive(claim.renew, lease_seconds=self._lease_ms / 1000):
                yield claim
        finally:
            if claim.messages:
                self._forget()
            claim.release()
        if overdue:
            self._turn(self._look(self._near_ms()), claim.closed)

    def _take(self, claim: S3Claim, until_ms: int) -> list[Waiting]:
        """Claim what is worth it of the slots that begin by then; all that is in these."""
        objects = self._look(until_ms)
        due = [each for each in objects if each.name.first_ms <= claim.due_by_ms]
        if due and self._worth_it(claim, objects):
            claim.take(due)
        return objects

    def _near_ms(self) -> int:
        return self._wheel.now_ms() + 1000 * max(*self._wheel.hierarchy.seconds[1:], 1)

    def _turn(self, objects: Sequence[Waiting], closed: Collection[str]) -> bool:
        """Turn the wheel for a while, until something is due at the latest; whether there may be more."""
        now_ms = self._wheel.now_ms()
        if self.seconds_left() < ENDED_SECONDS:
            return False
        until_ms = now_ms + TURN_MS
        if (earliest := self._earliest(objects, closed)) is not None:
            due_ms = earliest + self._gathering() - self._ahead_ms
            until_ms = min(until_ms, due_ms) if due_ms > now_ms else until_ms
        self._sweep(now_ms, until_ms)
        self._more_to_turn = self._turner.turn(objects, until_ms=until_ms) > 0
        self._turned_ms = self._wheel.now_ms()
        return self._more_to_turn

    def _sweep(self, now_ms: int, until_ms: int) -> None:
        """Forget, once a day, decisions and jobs of which nothing waits any more, and what runs of jobs have
        left that were given up; of jobs from a place of chance on, so that all have their turn."""
        if 0 <= now_ms - self._swept_ms < SWEEP_SECONDS * 1000:
            return
        bucket, wheel, old_ms = self._bucket, self._wheel, now_ms - SWEEP_SECONDS * 1000
        self._swept_ms, passed_ms = now_ms, 0.0

        def listed(prefix: str, start: str = "") -> Iterator[str]:
            for n, (key, _) in enumerate(bucket.listed(prefix, start_after=start)):
                if n >= _SWEPT and wheel.now_ms() >= until_ms:
                    return
                yield key

        def is_over(last_ms: int, begun_ms: int) -> bool:
            return begun_ms < old_ms and last_ms < passed_ms

        prefix = wheel.batches.prefix
        for decided in chain(portions(listed(prefix), lambda _: 0, 0, _SWEPT), [[]]):
            # After these, what waits is listed.
            first = min((each.name.slot for each in self._look(now_ms)), default=None)
            # Where what is listed first does not count, more may wait behind it; what is skipped waits, too.
            if wheel.unreadable or (first is None and any(bucket.listed(wheel.slots_prefix))):
                return
            passed_ms = inf if first is None else first.start_ms
            named = filter(layout.BATCH.fullmatch, (key.removeprefix(prefix) for key in decided))
            over = [f"{prefix}{each}" for each in named if is_over(*layout.times_of(each))]
            bucket.each(bucket.delete, over)
            if not over or len(decided) < _SWEPT:
                break
        jobs = wheel.batches.jobs
        start = f"{jobs}{secrets.token_hex(4)}"
        found = chain(listed(jobs, start), takewhile(lambda key: key < start, listed(jobs)))
        for job, keys in groupby(found, lambda key: key.rpartition("/")[0]):
            try:
                record, etag = bucket.get_json(f"{job}/{layout.RECORD}")
                runs = record.get("runs", {})
                begun = {batch: layout.times_of(batch)[1] for batch in runs}
                left_in = [run.get("endpoints", run["attempts"]) for run in runs.values()]
            except (AttributeError, LookupError, TypeError, ValueError):
                continue  # What it has stored is skipped, and waits until its record is restored.
            # Each dispatcher takes its endpoint out: of the others it does not know what waits there.
            passed = [
                run["endpoints"]
                for batch, run in runs.items()
                if wheel.batches.endpoint in run.get("endpoints", ())
                and is_over(run["last_ms"], max(run["last_ms"], begun[batch]))
            ]
            for endpoints in passed:
                endpoints.remove(wheel.batches.endpoint)
            waits = any(left_in) or max(begun.values(), default=0) >= old_ms
            if etag is not None and not waits:
                bucket.delete_unchanged(f"{job}/{layout.RECORD}", etag)
                # A run that has committed meanwhile keeps it, with the marks of all.
                runs = bucket.get_json(f"{job}/{layout.RECORD}")[0].get("runs", {})
            elif passed:
                with suppress(Changed):
                    bucket.put_json(f"{job}/{layout.RECORD}", record, over=etag)
            for few in portions(keys, lambda _: 0, 0, _SWEPT):
                batches = {key: key.removeprefix(f"{job}/").partition("~")[0] for key in few}
                ours = [key for key in few if layout.BATCH.fullmatch(batches[key])]
                left = [k for k in ours if k.endswith(".marks") and batches[k] not in runs]
                old = [key for key in left if layout.times_of(batches[key])[1] < old_ms]
                bucket.each(bucket.delete, old)

    def _worth_it(self, claim: S3Claim, objects: Iterable[Waiting]) -> bool:
        """Whether something is due so soon, or so much, that it is time to release."""
        waits = self._gathering()
        earliest = self._earliest(objects, claim.closed) if waits else None
        if earliest is None:
            return not waits
        ripe = sum(e.name.count for e in objects if e.name.last_ms <= claim.due_by_ms)
        return earliest <= claim.due_by_ms - waits or ripe >= claim.limit

    def _gathering(self) -> int:
        return min(self.gather_ms, self._ahead_ms * 2 // 3)

    def next_due_ms(self, except_destinations: Collection[str] = ()) -> int | None:
        """The earliest due time; later by as long as a claim will wait for more to be worth it."""
        objects = self._known(0)
        objects = self._look(self._wheel.now_ms()) if objects is None else objects
        earliest = self._earliest(objects, except_destinations)
        return None if earliest is None else earliest + self._gathering()

    def _look(self, until_ms: int) -> list[Waiting]:
        """Objects of the slots that have begun by then, or of the first slot, at this moment."""
        now_ms = self._wheel.now_ms()
        found = self._wheel.listed(until_ms=until_ms, or_first=True)
        self._seen = (now_ms, until_ms, found)
        return found

    def _known(self, until_ms: int) -> list[Waiting] | None:
        """What was listed some seconds ago, as far as then; None where we have written since."""
        seen_ms, seen_until_ms, found = self._seen
        recent = 0 <= self._wheel.now_ms() - seen_ms < _FRESH_MS and until_ms <= seen_until_ms
        return found if recent else None

    def _forget(self) -> None:
        self._seen = (-(10**12), 0, [])

    def _earliest(self, objects: Iterable[Waiting], closed: Collection[str]) -> int | None:
        """When the earliest message is due that nobody holds, among these objects."""
        earliest: int | None = None
        now_ms = self._wheel.now_ms()
        for waiting in objects:
            if earliest is not None and waiting.name.first_ms >= earliest:
                break
            due_ms = self._first_due_ms(waiting, now_ms, closed)
            if due_ms is not None and (earliest is None or due_ms < earliest):
                earliest = due_ms
        return earliest

    def _first_due_ms(self, waiting: Waiting, now_ms: int, closed: Collection[str]) -> int | None:
        if waiting.state_etag is None and not closed:
            return waiting.name.first_ms
        for each in self._wheel.present(waiting):
            state, position = each.state, each.position
            in_hand = state.leased(now_ms) and (state.moving or position in state.hand)
            if in_hand or state.held.get(position, 0) > now_ms:
                continue
            if not closed or each.message.destination not in closed:
                return each.line.due_ms
        return None

    def pending_count(self) -> int:
        """Lists all of the endpoint's objects: for people, not for loops."""
        return sum(self._wheel.count(waiting) for waiting in self._wheel.listed())

    def _page(self, limit: int, from_ms: int, from_id: str, before_ms: int) -> list[StoredMessage]:
        # What is overdue is asked after each look for it: some seconds old will do.
        listed = self._known(before_ms) if before_ms <= self._wheel.now_ms() else None
        listed = self._wheel.listed(until_ms=before_ms) if listed is None else listed
        found: dict[layout.Line, Present] = {}
        for waiting in listed:
            if waiting.name.last_ms < from_ms or waiting.name.first_ms >= before_ms:
                continue
            if len(found) >= limit and waiting.name.first_ms > next(reversed(found)).due_ms:
                break
            for each in self._wheel.present(waiting):
                if each.line.place > (from_ms, from_id) and each.line.due_ms < before_ms:
                    found[each.line] = each
            lines = sorted(found)
            end = limit
            while 0 < end < len(lines) and lines[end].place == lines[end - 1].place:
                end += 1
            found = {line: found[line] for line in lines[:end]}
        return [each.message for each in found.values()]

    def close(self) -> None:
        self._bucket.close()
