"""Rows of a table, read as messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from sqsdelay.core.delay import DueTime, delay_ms, utc
from sqsdelay.core.message import Message
from sqsdelay.errors import InvalidDelay, InvalidMessage, SqsDelayError
from sqsdelay.spark.sink.options import (
    ATTRIBUTES,
    BODY,
    CORRUPT,
    DEDUPLICATION_ID,
    DELAY,
    DUE_AT,
    ENDPOINT,
    GROUP_ID,
    MESSAGE_ID,
    Columns,
    Options,
)

_MICROSECONDS_PER_MS: Final = 1000


def derived_id(job: str, key: str | int) -> str:
    """The message id of a row that has a key: the SHA-256 of job, a NUL and key, in hexadecimal."""
    return hashlib.sha256(f"{job}\0{key}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Reads rows as messages for their endpoints.

    Args:
        delay_start_ms: the instant that ``delay_seconds`` counts from, epoch milliseconds: the same
            for every attempt on a row.
        refused_before_ms: rows that were due before this instant are rejected; None sends them.
    """

    columns: Columns
    options: Options
    delay_start_ms: int
    refused_before_ms: int | None = None

    def read(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Message | SqsDelayError]]:
        """Each row's endpoint and message, or why there is none."""
        batch = spelled(batch, self.columns.spelled)
        bodies, dues = self._column(batch, BODY), self._dues(batch)
        ids = self._column(batch, MESSAGE_ID)
        keys = self._column(batch, self.columns.key)
        endpoints = self._column(batch, ENDPOINT)
        groups = self._column(batch, GROUP_ID)
        deduplication_ids = self._column(batch, DEDUPLICATION_ID)
        maps = self._column(batch, ATTRIBUTES)
        unread = self._column(batch, CORRUPT)
        for row in range(batch.num_rows):
            endpoint = endpoints[row] or self.options.endpoint
            try:
                if unread[row] is not None:
                    raise InvalidMessage(f"{self._unread(batch, row)}: {unread[row]}")
                if endpoint is None:
                    raise InvalidMessage(f"{ENDPOINT} is NULL, and option endpoint is not given")
                message = Message(
                    _given(bodies[row], BODY),
                    due_at=utc(self._due_ms(dues[row])),
                    attributes=dict(maps[row] or ()),
                    message_id=self._message_id(ids[row], keys[row]),
                    message_group_id=groups[row],
                    message_deduplication_id=deduplication_ids[row],
                )
            except SqsDelayError as error:
                yield endpoint or "", error
            else:
                yield endpoint, message

    def _column(self, batch: pa.RecordBatch, name: str | None) -> list[Any]:
        if name is None or not self.columns.has(name):
            return [None] * batch.num_rows
        return list(batch.column(name).to_pylist())

    def _dues(self, batch: pa.RecordBatch) -> list[Any]:
        if self.columns.has(DELAY):
            return self._column(batch, DELAY)
        # Microseconds since the epoch: an instant, whatever the session's time zone.
        return list(batch.column(DUE_AT).cast(pa.int64()).to_pylist())

    def _due_ms(self, value: int | float | None) -> int:
        """When a row is due, rounded up to a millisecond; a past one is 0 at the least."""
        if value is None:
            name = DELAY if self.columns.has(DELAY) else DUE_AT
            raise InvalidDelay(f"{name} is NULL; say when the message is due")
        if self.columns.has(DELAY):
            due = DueTime(delay_ms=delay_ms(value))
        else:
            due = DueTime(at_ms=max(0, -(-int(value) // _MICROSECONDS_PER_MS)))
        due_ms = due.due_ms(self.delay_start_ms)
        if self.refused_before_ms is not None and due_ms < self.refused_before_ms:
            late = (self.refused_before_ms - due_ms) / 1000
            raise InvalidDelay(
                f"{DUE_AT} {utc(due_ms).isoformat()} was {late:g} s past when the job began; correct "
                "it, or send what is past at once: option past_due (send)"
            )
        return due_ms

    def _unread(self, batch: pa.RecordBatch, row: int) -> str:
        """Which columns of a line Spark could not read: those of a type that are not text."""
        typed = [name for name in (DELAY, DUE_AT, ATTRIBUTES) if self.columns.has(name)]
        missing = [name for name in typed if batch.column(name)[row].as_py() is None]
        if self._column(batch.slice(row, 1), BODY)[0] is None or not missing:
            return "Spark could not read this line"
        return f"Spark could not read {' and '.join(missing)} of this line"

    def _message_id(self, message_id: str | None, key: str | int | None) -> str:
        if message_id is not None:
            return message_id
        if self.columns.key is None:
            raise InvalidMessage(f"{MESSAGE_ID} is NULL, and there is no key to derive one from")
        if key is None:
            raise InvalidMessage(f"{self.columns.key} is NULL; a message id is derived from it")
        return derived_id(str(self.options.job), key)


def spelled(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """A batch under our own names of its columns."""
    return batch.rename_columns([names.get(n, n) for n in batch.schema.names]) if names else batch


def _given(value: str | None, name: str) -> str:
    if value is None:
        raise InvalidMessage(f"{name} is NULL")
    return value
