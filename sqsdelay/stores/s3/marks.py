"""Marks: one object of them for an endpoint, so that reading them for many messages is one request."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqsdelay.core.marks import Mark, in_force
from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.s3.bucket import Changed
from sqsdelay.stores.s3.wheel import Wheel

_ATTEMPTS: Final = 20


class Marks:
    """An endpoint's marks."""

    def __init__(self, wheel: Wheel) -> None:
        self._bucket = wheel.bucket
        self._key = f"{wheel.prefix}marks.json"

    def leave(self, marks: Sequence[Mark]) -> None:
        """Leave marks; those that have expired are forgotten on the way."""
        if not marks:
            return
        for _ in range(_ATTEMPTS):
            kept, etag = self._read()
            now_ms = self._bucket.clock.now_ms()
            valid = [mark for mark in kept.values() if mark.until_ms > now_ms]
            fields = [asdict(mark) for mark in in_force([*valid, *marks]).values()]
            body = json.dumps({"marks": fields, "write": secrets.token_hex(6)})
            try:
                self._bucket.put(self._key, body.encode(), over=etag)
                return
            except Changed:
                continue
        raise StoreUnavailable(
            f"bucket {self._bucket.name}: others leave marks all the time; try again"
        )

    def read(self, message_ids: Sequence[str]) -> dict[str, Mark]:
        """The marks of those messages that have one."""
        kept, _ = self._read()
        now_ms = self._bucket.clock.now_ms()
        return {
            message_id: kept[message_id]
            for message_id in message_ids
            if message_id in kept and kept[message_id].until_ms > now_ms
        }

    def _read(self) -> tuple[dict[str, Mark], str | None]:
        found = self._bucket.get(self._key)
        if found is None:
            return {}, None
        marks = [Mark(**fields) for fields in json.loads(found[0])["marks"]]
        return {mark.message_id: mark for mark in marks}, found[1]
