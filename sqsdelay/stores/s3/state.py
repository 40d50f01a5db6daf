"""What has become of an object's messages: an object beside it, written only under conditions.

It names messages by their position. Whoever releases an object's messages leases it here, notes which of
them he has in hand, and after each few hundred which are gone; a cancelled message is gone, too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class State:
    """Of one object.

    Args:
        owner: who leases it; empty for nobody.
        until_ms: the lease's end by S3's clock, epoch milliseconds.
        hand: what the owner may be sending at this moment.
        gone: what was released, cancelled or rejected.
        held: until when a message is not to be released.
        failures: counted since the object was written.
        moved: messages written elsewhere by a batch, which may not be committed yet.
        moving: the batch that writes all of them elsewhere; empty for none.
    """

    owner: str = ""
    until_ms: int = 0
    hand: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    held: Mapping[int, int] = field(default_factory=dict)
    failures: Mapping[int, int] = field(default_factory=dict)
    moved: Mapping[int, str] = field(default_factory=dict)
    moving: str = ""

    def leased(self, now_ms: int) -> bool:
        """Whether somebody has it now."""
        return bool(self.owner) and now_ms < self.until_ms

    def freed(self) -> State:
        """Nobody has it."""
        return replace(self, owner="", until_ms=0, hand=frozenset())

    def without(self, positions: Iterable[int]) -> State:
        """They have left the object."""
        left = frozenset(positions)
        return replace(
            self,
            gone=self.gone | left,
            hand=self.hand - left,
            held={n: until for n, until in self.held.items() if n not in left},
            failures={n: count for n, count in self.failures.items() if n not in left},
            moved={n: batch for n, batch in self.moved.items() if n not in left},
        )

    def to_bytes(self) -> bytes:
        """As JSON; no two are the same bytes, so that a writer recognises his own."""
        upto = 0
        while upto in self.gone:
            upto += 1
        fields = {
            "owner": self.owner,
            "until_ms": self.until_ms,
            "hand": sorted(self.hand),
            "upto": upto,
            "gone": sorted(n for n in self.gone if n > upto),
            "held": self.held,
            "failures": self.failures,
            "moved": self.moved,
            "moving": self.moving,
            "write": secrets.token_hex(6),
        }
        return json.dumps({name: value for name, value in fields.items() if value}).encode()

    @classmethod
    def of(cls, body: bytes) -> State:
        """The inverse of `to_bytes`."""
        found = json.loads(body)

        def by_position(name: str) -> dict[int, int]:
            return {int(n): value for n, value in found.get(name, {}).items()}

        return cls(
            owner=found.get("owner", ""),
            until_ms=found.get("until_ms", 0),
            hand=frozenset(found.get("hand", ())),
            gone=frozenset(range(found.get("upto", 0))) | frozenset(found.get("gone", ())),
            held=by_position("held"),
            failures=by_position("failures"),
            moved={int(n): batch for n, batch in found.get("moved", {}).items()},
            moving=found.get("moving", ""),
        )
