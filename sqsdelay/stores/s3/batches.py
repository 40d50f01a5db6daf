"""Batches: objects written together become visible together, by one write that happens once.

What a batch's decision says, ``committed`` or ``aborted``, never changes: whoever decides first does so
by a write that demands that there is none yet. So a writer who stood still for hours cannot commit what
others have given up, and whoever finds him standing still can give his batch up.

A batch of many writers, of which some may have begun a second time, is committed with the names of the
attempts that count: what others have written of it never does.

A job that writes to several endpoints has one decision for all of them, beside the endpoints' folders. Each
endpoint keeps its part of it with its own decisions, once anyone has asked there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.s3.bucket import Changed, ObjectBucket
from sqsdelay.stores.s3.slots import ObjectName, Slot, begun_ms_of, last_ms_of

BATCH_SECONDS: Final = 900
"""How long a batch may be written to before anyone may give it up: longer than any call, and the time
limit of a function."""

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

LATEST_MS: Final = 10**15 - 1
"""What a job's batch tells for its latest due time, which is known only at the end."""

_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a batch.

    Args:
        attempts: whose objects count; None for all of the batch.
    """

    committed: bool
    attempts: frozenset[str] | None = None

    def counts(self, name: ObjectName) -> bool:
        """Whether an object of the batch does."""
        return self.committed and (self.attempts is None or name.attempt in self.attempts)


class Batches:
    """The decisions of one endpoint, below the prefix of its keys."""

    def __init__(self, bucket: ObjectBucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}decided/"
        root, _, self._endpoint = prefix.rstrip("/").rpartition("/")
        self.root = f"{root}/" if root else ""
        """What the prefixes of all endpoints of the store have in common."""
        self._known: dict[str, Decision] = {}

    def _key(self, batch: str) -> str:
        return f"{self._prefix}{batch}"

    def decision(self, batch: str) -> Decision | None:
        """What was decided; None while nothing is."""
        known = self._known.get(batch)
        if known is None:
            fields, etag = self._bucket.get_json(self._key(batch))
            if etag is None:
                return self._of_all(batch)
            attempts = fields.get("attempts")
            known = self._remember(
                batch,
                Decision(
                    fields["decision"] == COMMITTED,
                    None if attempts is None else frozenset(attempts),
                ),
            )
        return known

    def _of_all(self, batch: str) -> Decision | None:
        """What was decided for several endpoints, kept with this one's decisions from now on."""
        if last_ms_of(batch) != LATEST_MS:
            return None
        fields, etag = self._bucket.get_json(self._key_of_all(batch))
        if etag is None:
            return None
        attempts = fields["attempts"].get(self._endpoint)
        with suppress(StoreUnavailable):  # It counts all the same.
            self._decide(batch, ABORTED if attempts is None else COMMITTED, attempts)
        kept = None if attempts is None else frozenset(attempts)
        return self._remember(batch, Decision(attempts is not None, kept))

    def _key_of_all(self, batch: str) -> str:
        return f"{self.root}.decided/{batch}"

    def decide_for_all(self, batch: str, attempts: Mapping[str, Collection[str]]) -> bool:
        """Commit a job's batch in all its endpoints at once.

        Args:
            attempts: by endpoint, as its prefix has it, whose objects count. None at all gives the batch up.

        Returns:
            False where the opposite was decided before.
        """
        decision = COMMITTED if attempts else ABORTED
        named = {endpoint: sorted(each) for endpoint, each in attempts.items()}
        key = self._key_of_all(batch)
        try:
            self._bucket.put_json(key, {"decision": decision, "attempts": named})
        except Changed:
            return bool(self._bucket.get_json(key)[0]["decision"] == decision)
        return True

    def committed(self, batch: str) -> bool | None:
        """True, False where it was given up, None while nothing is decided."""
        decision = self.decision(batch)
        return None if decision is None else decision.committed

    def commit(self, batch: str) -> None:
        """Make all of it visible.

        Raises:
            StoreUnavailable: it was given up, and nothing of it is stored.
        """
        if not self.commits(batch):
            raise StoreUnavailable(
                f"the batch took longer than {BATCH_SECONDS} s and was given up; nothing of it is "
                "stored: try again"
            )

    def commits(self, batch: str, attempts: Collection[str] | None = None) -> bool:
        """As `commit`; False where it was given up.

        Args:
            attempts: whose objects count; None for all of the batch.
        """
        return self._decide(batch, COMMITTED, attempts)

    def abort(self, batch: str) -> bool:
        """Give it up; False where it is committed."""
        return self._decide(batch, ABORTED)

    def _decide(self, batch: str, decision: str, attempts: Collection[str] | None = None) -> bool:
        """Whether this is what it comes to."""
        fields: dict[str, object] = {"decision": decision}
        if attempts is not None:
            fields["attempts"] = sorted(attempts)
        kept = None if attempts is None else frozenset(attempts)
        try:
            self._bucket.put_json(self._key(batch), fields)
            self._remember(batch, Decision(decision == COMMITTED, kept))
            return True
        except Changed:
            return self.committed(batch) == (decision == COMMITTED)

    def forget(self, batch: str) -> None:
        """Delete its decision: no object can refer to it any more."""
        self._bucket.delete(self._key(batch))

    def visible(self, name: ObjectName) -> bool | None:
        """Whether an object counts; False where it never will, None while that is not decided."""
        if not name.batch:
            return True
        decision = self.decision(name.batch)
        if decision is None:
            if self._bucket.clock.now_ms() - begun_ms_of(name.batch) < BATCH_SECONDS * 1000:
                return None
            # Its writer is dead, or will find that it was given up.
            if last_ms_of(name.batch) == LATEST_MS:
                self.decide_for_all(name.batch, {})
            elif self.abort(name.batch):
                return False
            decision = self.decision(name.batch)
        return decision is not None and decision.counts(name)

    def sweep(self, decided: Sequence[str], first: Slot | None) -> None:
        """Forget decisions that no object can refer to any more.

        Args:
            decided: found before what waits was listed.
            first: the first slot that holds anything; None for none.
        """
        yesterday_ms = self._bucket.clock.now_ms() - 86_400_000
        for key in decided:
            batch = key.removeprefix(self._prefix)
            over = first is None or last_ms_of(batch) < first.start_ms
            if over and begun_ms_of(batch) < yesterday_ms:
                self._bucket.delete(key)

    def decided(self, most: int) -> list[str]:
        """Keys of decisions, those first that matter for the shortest time."""
        return [found.key for found in islice(self._bucket.listed(self._prefix), most)]

    def _remember(self, batch: str, decision: Decision) -> Decision:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[batch] = decision
        return decision
