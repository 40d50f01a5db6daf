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

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.s3.bucket import Changed, ObjectBucket
from sqsdelay.stores.s3.layout import ObjectName, times_of

BATCH_SECONDS: Final = 900
"""How long a batch may be written to before anyone may give it up: longer than any call, and the time
limit of a function."""

COMMITTED: Final = {"decision": "committed"}
ABORTED: Final = {"decision": "aborted"}

LATEST_MS: Final = 10**15 - 1
"""What a job's batch tells for its latest due time, which is known only at the end."""

_REMEMBERED: Final = 10_000


class Batches:
    """The decisions of one endpoint, below the prefix of its keys."""

    def __init__(self, bucket: ObjectBucket, prefix: str) -> None:
        self._bucket = bucket
        self.prefix = f"{prefix}decided/"
        root, _, self.endpoint = prefix.rstrip("/").rpartition("/")
        self.root = f"{root}/" if root else ""
        """What the prefixes of all endpoints of the store have in common."""
        self._known: dict[str, frozenset[str] | bool] = {}

    def key(self, batch: str) -> str:
        """Of its decision."""
        return f"{self.prefix}{batch}"

    def _counting(self, batch: str) -> frozenset[str] | bool | None:
        """Whose objects count: those of these attempts, all, or none; None while nothing is decided."""
        if batch not in self._known:
            decided: Mapping[str, Any]
            decided, etag = self._bucket.get_json(self.key(batch))
            if etag is None and times_of(batch)[0] == LATEST_MS:
                of_all, etag = self._bucket.get_json(self._key_of_all(batch))
                attempts = of_all.get("attempts", {}).get(self.endpoint)
                decided = ABORTED if attempts is None else {**COMMITTED, "attempts": attempts}
                if etag is not None:
                    with suppress(StoreUnavailable):  # It counts all the same.
                        decided = self._decided(self.key(batch), decided)
            if etag is None:
                return None
            self._remember(batch, decided)
        return self._known[batch]

    def _remember(self, batch: str, decided: Mapping[str, Any]) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        attempts = decided.get("attempts")
        counting = True if attempts is None else frozenset(attempts)
        self._known[batch] = _is_commit(decided) and counting

    def _key_of_all(self, batch: str) -> str:
        return f"{self.root}.decided/{batch}"

    def _decided(self, key: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is decided: this, unless something was before."""
        try:
            self._bucket.put_json(key, decision)
        except Changed:
            return self._bucket.get_json(key)[0]
        return decision

    def committed(self, batch: str) -> bool | None:
        """True, False where it was given up, None while nothing is decided."""
        counting = self._counting(batch)
        return None if counting is None else counting is not False

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
        named = {} if attempts is None else {"attempts": sorted(attempts)}
        return self._comes_to(batch, {**COMMITTED, **named})

    def commits_for_all(self, batch: str, attempts: Mapping[str, Collection[str]]) -> bool:
        """As `commits`, of a job's batch in all its endpoints at once: by their ``endpoint``, whose objects
        count."""
        named = {endpoint: sorted(each) for endpoint, each in attempts.items()}
        decision = {**COMMITTED, "attempts": named}
        return _is_commit(self._decided(self._key_of_all(batch), decision))

    def abort(self, batch: str, *, for_all: bool = False) -> bool:
        """Give it up, a job's batch ``for_all`` of its endpoints; False where it is committed."""
        if for_all:
            decision = {**ABORTED, "attempts": {}}
            if _is_commit(self._decided(self._key_of_all(batch), decision)):
                return False
        return self._comes_to(batch, ABORTED)

    def _comes_to(self, batch: str, decision: Mapping[str, Any]) -> bool:
        """Decide; False where the opposite was decided before."""
        decided = self._decided(self.key(batch), decision)
        self._remember(batch, decided)
        return _is_commit(decided) is _is_commit(decision)

    def visible(self, name: ObjectName) -> bool | None:
        """Whether an object counts; False where it never will, None while that is not decided."""
        if not name.batch:
            return True
        counting = self._counting(name.batch)
        if counting is None:
            last_ms, begun_ms = times_of(name.batch)
            if self._bucket.clock.now_ms() - begun_ms < BATCH_SECONDS * 1000:
                return None
            # Its writer is dead, or will find that it was given up.
            self.abort(name.batch, for_all=last_ms == LATEST_MS)
            counting = self._counting(name.batch)
        return name.attempt in counting if isinstance(counting, frozenset) else bool(counting)


def _is_commit(decided: Mapping[str, Any]) -> bool:
    return decided.get("decision") == COMMITTED["decision"]
