"""Rows of a table, read as messages one by one; and those that are plain as the lines of a store's objects,
column by column: no Python object is made of a row.

A row is plain if its text alone shows that `sqsdelay.core` would take it, and what it would make of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sqsdelay.core.delay import checked_due_ms, delay_ms, due_at_ms, utc
from sqsdelay.core.limits import MAX_ATTRIBUTE_NAME_CHARS, MAX_ATTRIBUTES, MAX_MESSAGE_BYTES
from sqsdelay.core.message import DELAY_SECONDS, Message
from sqsdelay.errors import InvalidDelay, InvalidMessage, SqsDelayError
from sqsdelay.spark.sink.options import TEXTS, Columns, Options
from sqsdelay.spark.sink.receipts import Mark, number
from sqsdelay.spark.sink.run import Run

_KINDS: Final = dict.fromkeys(TEXTS, pa.string()) | {
    "attributes": pa.map_(pa.string(), pa.string())
}
"""Of columns that a table need not have."""


def derived_id(job: str, key: str | int) -> str:
    """The message id of a row that has a key: the SHA-256 of job, a NUL and key, in hexadecimal."""
    return hashlib.sha256(f"{job}\0{key}".encode()).hexdigest()


@dataclass(frozen=True)
class Rows:
    """Reads a job's rows as messages, in every attempt on a row alike: what that depends on is the run's."""

    columns: Columns
    options: Options
    run: Run

    def mark(self, endpoint: str, message: Message) -> Mark:
        """The mark that is kept of a row that was sent or stored, as `marks_of` makes it of columns."""
        assert message.due_at is not None, "rows have a due time"
        due_ms = due_at_ms(message.due_at) - self.since_ms
        fifo = message.message_group_id, message.message_deduplication_id
        attributes: Any = chain.from_iterable(sorted(message.attributes.items()))  # Of text alone.
        fields = endpoint, str(due_ms), message.body, *attributes
        plain = fifo == (None, None) and all(f is not None and "\0" not in f for f in fields)
        content = number(("\0".join(fields) if plain else repr((fields, fifo))).encode())
        return Mark(number(str(message.message_id).encode()), content)

    @property
    def delays(self) -> bool:
        """Whether rows have delays, not due times."""
        return self.columns.has("delay_seconds")

    @property
    def since_ms(self) -> int:
        """What due times in marks count from: without receipts, a delay counts from another instant when
        the job is run again."""
        return self.run.delay_start_ms if self.delays else 0

    def resolved(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows under our own names of their columns; those that the table has not are NULL."""
        columns = [self.columns.spelled.get(name, name) for name in batch.schema.names]
        found = dict(zip(columns, batch.columns, strict=True))
        missing = {n: pa.nulls(len(batch), kind) for n, kind in _KINDS.items() if n not in found}
        return pa.RecordBatch.from_pydict(found | missing)

    def read(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Message | SqsDelayError]]:
        """Each row's endpoint and message, or why there is none; of `resolved` rows."""
        names = (*_KINDS, self.columns.key or "message_id")
        dues = batch.column("delay_seconds" if self.delays else "due_at")
        # Of due times, microseconds since the epoch: an instant, whatever the session's time zone.
        dues = dues if self.delays else dues.cast(pa.int64())
        given = zip(*(c.to_pylist() for c in (*map(batch.column, names), dues)), strict=True)
        for row, (body, named, own_id, *fifo, unread, texts, key, due) in enumerate(given):
            endpoint = named or self.options.endpoint
            try:
                if unread is not None:
                    raise InvalidMessage(f"{self._unread(batch, row)}: {unread}")
                if endpoint is None:
                    raise InvalidMessage("endpoint is NULL, and option endpoint is not given")
                if body is None:
                    raise InvalidMessage("body is NULL")
                message = Message(
                    body,
                    due_at=utc(self._due_ms(due)),
                    attributes=dict(texts or ()),
                    message_id=self._derived(key) if own_id is None else own_id,
                    message_group_id=fifo[0],
                    message_deduplication_id=fifo[1],
                )
            except SqsDelayError as error:
                yield endpoint or "", error
            else:
                yield endpoint, message

    def _due_ms(self, value: int | float | None) -> int:
        """When a row is due, rounded up to a millisecond; a past one is 0 at the least."""
        if value is None:
            name = "delay_seconds" if self.delays else "due_at"
            raise InvalidDelay(f"{name} is NULL; say when the message is due")
        if self.delays:
            due_ms = checked_due_ms(self.run.delay_start_ms + delay_ms(value))
        else:  # Microseconds.
            due_ms = checked_due_ms(max(0, -(-int(value) // 1000)))
        if self.options.past_due == "reject" and due_ms < self.run.began_ms:
            late = (self.run.began_ms - due_ms) / 1000
            raise InvalidDelay(
                f"due_at {utc(due_ms).isoformat()} was {late:g} s past when the job began; correct "
                "it, or send what is past at once: option past_due (send)"
            )
        return due_ms

    def _unread(self, batch: pa.RecordBatch, row: int) -> str:
        """Which columns of a line Spark could not read: those of a type that are not text."""
        typed = [n for n in ("delay_seconds", "due_at", "attributes") if self.columns.has(n)]
        missing = [name for name in typed if batch.column(name)[row].as_py() is None]
        if batch.column("body")[row].as_py() is None or not missing:
            return "Spark could not read this line"
        return f"Spark could not read {' and '.join(missing)} of this line"

    def _derived(self, key: str | int | None) -> str:
        if self.columns.key is None:
            raise InvalidMessage("message_id is NULL, and there is no key to derive one from")
        if key is None:
            raise InvalidMessage(f"{self.columns.key} is NULL; a message id is derived from it")
        return derived_id(str(self.options.job), key)


OUR_BYTES: Final = 1024
"""More than sqsdelay adds to a message."""

_OURS: Final = 2
"""Attributes that sqsdelay adds."""

_CLOCKS_APART_SECONDS: Final = 86_400
"""Rows nearer to the longest delay are left to the sender, which knows SQS's time."""

# In RE2's spelling what `sqsdelay.core.limits` has in Python's.
_ID: Final = r"^[!-~]{1,128}$"
_FORBIDDEN: Final = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x{fffe}\x{ffff}]"
_NAME: Final = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
_NOT_THEIRS: Final = r"^((?i)aws\.|(?i)amazon\.|sqsdelay\.)"
_PLAIN_VALUE: Final = r"^[ -~]+$"


def lines_of(plain: pa.RecordBatch, destination: str) -> pa.LargeBinaryArray:
    """As `sqsdelay.stores.s3.layout.line_of` writes them, with their line breaks."""
    to, dues = json.dumps(destination, ensure_ascii=False), plain["dues"].cast(pa.large_string())
    joined = _joined(
        '{"message_id":"', _quoted(plain["ids"]), '","due_ms":', dues,
        f',"destination":{to},"body":"', _quoted(plain["bodies"]), '"', plain["headers"], "}\n",
    )  # fmt: skip
    return joined.cast(pa.large_binary())


def marks_of(plain: pa.RecordBatch, since_ms: int) -> tuple[list[int], list[int]]:
    """Ids and contents, as `Rows.mark` makes them of messages."""
    dues = pc.subtract(plain["dues"], since_ms).cast(pa.large_string())
    texts = _joined(plain["endpoints"], "\0", dues, "\0", plain["bodies"])
    contents = texts.cast(pa.large_binary()).to_pylist()
    for n, given in enumerate(plain["attributes"].to_pylist()):
        if given:
            fields = chain.from_iterable(sorted(dict(given).items()))
            contents[n] = b"\0".join((contents[n], *map(str.encode, fields)))
    ids = plain["ids"].cast(pa.large_binary()).to_pylist()
    return list(map(number, ids)), list(map(number, contents))


def _dues(rows: Rows, batch: pa.RecordBatch) -> pa.Int64Array:
    """When rows are due, epoch milliseconds; NULL where that takes a closer look."""
    if rows.delays:
        most = float(rows.options.max_delay_seconds)
        delays = batch.column("delay_seconds").cast(pa.float64(), safe=False)
        fits = pc.and_(pc.greater_equal(delays, 0.0), pc.less_equal(delays, most))
        ms = pc.ceil(pc.multiply(pc.if_else(fits, delays, None), 1000.0)).cast(pa.int64())
        return pc.add(ms, rows.run.delay_start_ms)
    micros = batch.column("due_at").cast(pa.int64())
    later = pc.if_else(pc.greater(micros, 0), micros, None)
    return pc.divide(pc.add(later, 999), 1000)


def plain_rows(rows: Rows, batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """Of the `resolved` rows of a batch those that are plain and due so late that they are staged; None for
    none. Headers are as JSON has them within quotes, no headers empty; sizes not less than SQS counts."""
    dues, most_seconds = _dues(rows, batch), rows.options.max_delay_seconds
    before_ms = rows.run.began_ms + (most_seconds - _CLOCKS_APART_SECONDS) * 1000
    far = pc.and_(pc.greater(dues, rows.run.after_ms), pc.less(dues, before_ms))
    for name in ("_corrupt_record", "message_group_id", "message_deduplication_id"):
        far = pc.and_(far, pc.is_null(batch.column(name)))
    positions = pc.indices_nonzero(pc.fill_null(far, False)).cast(pa.int64())
    if not len(positions):
        return None
    part = batch.take(positions)
    try:
        bodies = _texts(part.column("body"))
        named = _texts(part.column("endpoint"))
        ids = _ids(rows, part)
        headers, fits = _headers(part.column("attributes"))
    except pa.ArrowInvalid:  # Text that is none.
        return None
    given = pc.greater(pc.fill_null(pc.binary_length(named), 0), 0)
    endpoints = pc.if_else(given, named, pa.scalar(rows.options.endpoint, pa.large_string()))
    size = pc.add(pc.binary_length(bodies), pc.binary_length(headers))
    fits = pc.and_(fits, pc.greater(pc.binary_length(bodies), 0))
    fits = pc.and_(fits, pc.less(size, MAX_MESSAGE_BYTES - OUR_BYTES))
    fits = pc.and_(fits, pc.invert(pc.match_substring_regex(bodies, _FORBIDDEN)))
    fits = pc.and_(fits, pc.match_substring_regex(ids, _ID))
    fits = pc.and_(fits, pc.is_valid(endpoints))
    names = ["positions", "ids", "dues", "bodies", "attributes", "headers", "endpoints", "sizes"]
    columns = positions, ids, dues.take(positions), bodies, part.column("attributes"), headers
    plain = pa.RecordBatch.from_arrays([*columns, endpoints, size], names=names)
    return plain.filter(pc.fill_null(fits, False))


def _texts(column: Any) -> Any:
    """A column of text, checked to be UTF-8."""
    return column.cast(pa.large_binary()).cast(pa.large_string())


def _quoted(texts: Any) -> Any:
    r"""Text as JSON has it within quotes; of control characters it holds \t, \n and \r only."""
    pairs = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
    # All of them, one after the other, are looked at quickly.
    found = bytes(texts.buffers()[2] or b"")
    for character, written in pairs:
        if character.encode() in found:
            texts = pc.replace_substring(texts, character, written)
    return texts


def _joined(*parts: Any) -> Any:
    texts = [pa.scalar(p, pa.large_string()) if isinstance(p, str) else p for p in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _ids(rows: Rows, part: pa.RecordBatch) -> Any:
    """Each row's own id, or else that of its key; NULL where it has neither."""
    given, key = _texts(part.column("message_id")), rows.columns.key
    if key is None or not given.null_count:
        return given
    job, keys = str(rows.options.job), part.column(key).to_pylist()
    derived = [None if each is None else derived_id(job, each) for each in keys]
    return pc.coalesce(given, pa.array(derived, pa.large_string()))


def _headers(maps: pa.MapArray) -> tuple[Any, Any]:
    """The headers of each row, ready for its line, and whether they are plain."""
    none = pa.repeat(pa.scalar("", pa.large_string()), len(maps))
    if maps.null_count == len(maps):
        return none, pa.repeat(True, len(maps))
    names, values = _texts(maps.keys), _texts(maps.items)
    short = pc.less_equal(pc.binary_length(names), MAX_ATTRIBUTE_NAME_CHARS)
    plain = pc.and_(pc.match_substring_regex(names, _NAME), short)
    plain = pc.and_(plain, pc.invert(pc.match_substring_regex(names, _NOT_THEIRS)))
    plain = pc.and_(plain, pc.not_equal(names, DELAY_SECONDS))
    plain = pc.fill_null(pc.and_(plain, pc.match_substring_regex(values, _PLAIN_VALUE)), False)
    lists = pa.LargeListArray.from_arrays(maps.offsets.cast(pa.int64()), names)
    odd = pc.unique(pc.list_parent_indices(lists).filter(pc.invert(plain)))
    rows_of = pa.array(range(len(maps)), pa.int64())
    fits = pc.invert(pc.is_in(rows_of, odd.cast(pa.int64())))
    fits = pc.and_(fits, pc.less_equal(pc.list_value_length(lists), MAX_ATTRIBUTES - _OURS))
    # JSON within JSON: what is quoted in the headers is quoted again in the line.
    text = _quoted(_quoted(values))
    each = _joined(r"\"", names, r"\": {\"type\": \"String\", \"text\": \"", text, r"\"}")
    lists_of = pa.LargeListArray.from_arrays(lists.offsets, each)
    joined = pc.binary_join(lists_of, pa.scalar(", ", pa.large_string()))
    written = _joined(r',"headers":"{\"attributes\": {', joined, r'}}"')
    return pc.if_else(pc.greater(pc.list_value_length(lists), 0), written, none), fits
