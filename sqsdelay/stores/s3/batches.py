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

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

LATEST_MS: Final = 10**15 - 1
"""What a job's batch tells for its latest due time, which is known only at the end."""

_REMEMBERED: Final = 10_000

Counting = frozenset[str] | bool
"""Whose objects of a decided batch count: those of these attempts, all, or none."""


class Batches:
    """The decisions of one endpoint, below the prefix of its keys."""

    def __init__(self, bucket: ObjectBucket, prefix: str) -> None:
        self._bucket = bucket
        self.prefix = f"{prefix}decided/"
        root, _, self._endpoint = prefix.rstrip("/").rpartition("/")
        self.root = f"{root}/" if root else ""
        """What the prefixes of all endpoints of the store have in common."""
        self._known: dict[str, Counting] = {}

    def key(self, batch: str) -> str:
        """Of its decision."""
        return f"{self.prefix}{batch}"

    def _counting(self, batch: str) -> Counting | None:
        """What was decided; None while nothing is."""
        if batch not in self._known:
            fields, etag = self._bucket.get_json(self.key(batch))
            if etag is None:
                return self._of_all(batch)
            self._remember(batch, fields)
        return self._known[batch]

    def _of_all(self, batch: str) -> Counting | None:
        """What was decided for several endpoints, kept with this one's decisions from now on."""
        if times_of(batch)[0] != LATEST_MS:
            return None
        fields, etag = self._bucket.get_json(self._key_of_all(batch))
        if etag is None:
            return None
        attempts = fields["attempts"].get(self._endpoint)
        mine = (
            {"decision": ABORTED}
            if attempts is None
            else {"decision": COMMITTED, "attempts": attempts}
        )
        with suppress(StoreUnavailable):  # It counts all the same.
            self._decide(batch, mine)
        self._remember(batch, mine)
        return self._known[batch]

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

    def _remember(self, batch: str, decided: dict[str, Any]) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        attempts = decided.get("attempts")
        counting = True if attempts is None else frozenset(attempts)
        self._known[batch] = decided["decision"] == COMMITTED and counting

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
        return self._decide(batch, {"decision": COMMITTED, **named})

    def abort(self, batch: str) -> bool:
        """Give it up; False where it is committed."""
        return self._decide(batch, {"decision": ABORTED})

    def _decide(self, batch: str, decision: dict[str, Any]) -> bool:
        """Whether this is what it comes to."""
        try:
            self._bucket.put_json(self.key(batch), decision)
        except Changed:
            return self.committed(batch) is (decision["decision"] == COMMITTED)
        self._remember(batch, decision)
        return True

    def visible(self, name: ObjectName) -> bool | None:
        """Whether an object counts; False where it never will, None while that is not decided."""
        if not name.batch:
            return True
        counting = self._counting(name.batch)
        if counting is None:
            begun_ms = times_of(name.batch)[1]
            if self._bucket.clock.now_ms() - begun_ms < BATCH_SECONDS * 1000:
                return None
            # Its writer is dead, or will find that it was given up.
            if times_of(name.batch)[0] == LATEST_MS:
                self.decide_for_all(name.batch, {})
            else:
                self.abort(name.batch)
            counting = self._counting(name.batch)
        return name.attempt in counting if isinstance(counting, frozenset) else bool(counting)
