"""Amendments: one object of them for an endpoint: reading them for many messages is one request."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqsdelay.core.stored_message import Amendment, latest_amendments
from sqsdelay.errors import StoreUnavailable
from sqsdelay.stores.s3.bucket import Changed
from sqsdelay.stores.s3.wheel import Wheel

_ATTEMPTS: Final = 20


class Amendments:
    """Of one endpoint."""

    def __init__(self, wheel: Wheel) -> None:
        self._bucket = wheel.bucket
        self._key = f"{wheel.prefix}amendments.json"

    def leave(self, amendments: Sequence[Amendment]) -> None:
        """Leave some; those that have expired are forgotten on the way."""
        if not amendments:
            return
        for _ in range(_ATTEMPTS):
            kept, etag = self._read()
            now_ms = self._bucket.clock.now_ms()
            valid = [each for each in kept.values() if each.until_ms > now_ms]
            fields = [asdict(each) for each in latest_amendments([*valid, *amendments]).values()]
            body = json.dumps({"amendments": fields, "write": secrets.token_hex(6)})
            try:
                self._bucket.put(self._key, body.encode(), over=etag)
                return
            except Changed:
                continue
        raise StoreUnavailable(
            f"bucket {self._bucket.name}: too many concurrent amendments; try again"
        )

    def read(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of those messages that have one."""
        kept, _ = self._read()
        now_ms = self._bucket.clock.now_ms()
        return {
            message_id: kept[message_id]
            for message_id in message_ids
            if message_id in kept and kept[message_id].until_ms > now_ms
        }

    def _read(self) -> tuple[dict[str, Amendment], str | None]:
        found = self._bucket.get(self._key)
        if found is None:
            return {}, None
        amendments = [Amendment(**fields) for fields in json.loads(found[0])["amendments"]]
        return {each.message_id: each for each in amendments}, found[1]
