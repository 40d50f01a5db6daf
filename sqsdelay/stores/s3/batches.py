"""Batches: objects written together become visible together, by one write that happens once.

What a batch's decision says, ``committed`` or ``aborted``, never changes: whoever decides first does so
by a write that demands that there is none yet. So a writer who stood still for hours cannot commit what
others have given up, and whoever finds him standing still can give his batch up.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Final

from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.s3.bucket import Changed, ObjectBucket
from sqsdelay.stores.s3.slots import ObjectName, Slot, begun_ms_of, last_ms_of

BATCH_SECONDS: Final = 900
"""How long a batch may be written to before anyone may give it up: longer than any call, and the time
limit of a function."""

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"

_REMEMBERED: Final = 10_000


class Batches:
    """The decisions of one endpoint.

    Args:
        prefix: of the endpoint's keys.
    """

    def __init__(self, bucket: ObjectBucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}decided/"
        self._known: dict[str, str] = {}

    def _key(self, batch: str) -> str:
        return f"{self._prefix}{batch}"

    def decision(self, batch: str) -> str | None:
        """What was decided; None while nothing is."""
        known = self._known.get(batch)
        if known is None:
            found = self._bucket.get(self._key(batch))
            if found is None:
                return None
            known = self._remember(batch, str(json.loads(found[0])["decision"]))
        return known

    def committed(self, batch: str) -> bool | None:
        """True, False where it was given up, None while nothing is decided."""
        decision = self.decision(batch)
        return None if decision is None else decision == COMMITTED

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

    def commits(self, batch: str) -> bool:
        """As `commit`; False where it was given up."""
        return self._decide(batch, COMMITTED)

    def abort(self, batch: str) -> bool:
        """Give it up; False where it is committed."""
        return self._decide(batch, ABORTED)

    def _decide(self, batch: str, decision: str) -> bool:
        """Whether this is what it comes to."""
        body = json.dumps({"decision": decision, "write": secrets.token_hex(6)}).encode()
        try:
            self._bucket.put(self._key(batch), body)
            self._remember(batch, decision)
            return True
        except Changed:
            return self.decision(batch) == decision

    def visible(self, name: ObjectName) -> bool | None:
        """Whether an object counts; False where it never will, None while that is not decided."""
        if not name.batch:
            return True
        decision = self.decision(name.batch)
        if decision is None:
            if self._bucket.clock.now_ms() - begun_ms_of(name.batch) < BATCH_SECONDS * 1000:
                return None
            # Its writer is dead, or will find that it was given up.
            return not self.abort(name.batch)
        return decision == COMMITTED

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
        keys = []
        for found in self._bucket.listed(self._prefix):
            keys.append(found.key)
            if len(keys) == most:
                break
        return keys

    def _remember(self, batch: str, decision: str) -> str:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[batch] = decision
        return decision
