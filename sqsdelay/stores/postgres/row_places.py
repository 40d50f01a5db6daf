"""Where rows lie (ctid), many at once as PostgreSQL takes them: psycopg has no type for it."""

from __future__ import annotations

import struct
from typing import Final

from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

_TID: Final = types["tid"]
_HEAD: Final = struct.Struct("!5I")
_LENGTH: Final = struct.pack("!I", 6)


class RowPlaces(list[bytes | None]):
    """Places as PostgreSQL gives them in binary, six bytes each; with None they cannot be sent."""


class RowPlacesDumper(Dumper):
    """`RowPlaces` as an array in binary."""

    format = Format.BINARY
    oid = _TID.array_oid

    def dump(self, obj: RowPlaces) -> bytes:
        head = _HEAD.pack(1, 0, _TID.oid, len(obj), 1)
        return _LENGTH.join([head, *obj])
