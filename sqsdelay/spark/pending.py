"""What waits in an S3 store: counted by Spark from the objects themselves, per day and endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from sqsdelay.core.message import size_of
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.cost import Prices
from sqsdelay.cost.strategies import MONTH_SECONDS, READS_PER_MESSAGE, WRITES_PER_MESSAGE
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.stores.s3.bucket import ObjectBucket
from sqsdelay.stores.s3.jobs import wheel_of
from sqsdelay.stores.s3.objects import VERSION, message_of
from sqsdelay.stores.s3.slots import BUCKET, ObjectName, parse, settings_of
from sqsdelay.stores.s3.wheel import Waiting, Wheel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS: Final = 86_400_000
_OBJECTS_A_TASK: Final = 50
_CHUNK: Final = 64 * 1024
"""Bytes that SQS bills as one request."""

_GB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Part:
    """An object that may hold messages, with what a task has to know of it."""

    endpoint: str
    name: ObjectName
    state_etag: str | None
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What of one endpoint is due on one day (UTC).

    Args:
        day_ms: when the day begins, epoch milliseconds.
        message_bytes: of bodies and attributes, as SQS counts them.
        stored_bytes: their share of the objects, which are compressed.
    """

    endpoint: str
    day_ms: int
    messages: int
    message_bytes: int
    stored_bytes: int

    def cost(self, now_ms: int, prices: Prices) -> Fraction:
        """What they will still cost: storage until they are due, and their release in full batches."""
        months = Fraction(max(0, self.day_ms + DAY_MS // 2 - now_ms), MONTH_SECONDS * 1000)
        requests = max(
            Fraction(self.messages, MAX_BATCH_ENTRIES), Fraction(self.message_bytes, _CHUNK)
        )
        return (
            Fraction(self.stored_bytes, _GB) * months * prices.s3_gb_month
            + self.messages * WRITES_PER_MESSAGE * prices.s3_put
            + self.messages * READS_PER_MESSAGE * prices.s3_get
            + requests * prices.sqs_standard_request
        )


def pending(spark: SparkSession, url: str, *, endpoint: str | None = None) -> list[Pending]:
    """What waits in a store, by endpoint and day.

    Batches that are not decided do not count, nor does what was cancelled or released. Nothing is written
    or deleted.

    Args:
        endpoint: of this one only.

    Raises:
        ConfigurationError: the URL is no S3 store's.
        StoreMissing, StoreUnavailable
    """
    parts = list(_listed(url, endpoint))
    if not parts:
        return []
    tasks = max(1, min(len(parts), -(-len(parts) // _OBJECTS_A_TASK)))
    spread = spark.sparkContext.parallelize(parts, tasks)
    found: dict[tuple[str, int], list[int]] = {}
    for key, sums in spread.mapPartitions(lambda some: iter(_counted(url, some).items())).collect():
        _add(found, key, sums)
    return [
        Pending(endpoint=e, day_ms=d, messages=s[0], message_bytes=s[1], stored_bytes=s[2])
        for (e, d), s in sorted(found.items())
    ]


def _listed(url: str, endpoint: str | None) -> Iterator[Part]:
    """The objects that count: their batch is committed with the attempt that wrote them."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not BUCKET.fullmatch(parts.netloc):
        raise InvalidSetting("only an S3 store can be read by Spark; give s3://BUCKET/PREFIX")
    prefix = settings_of(parts).get("prefix", "")
    prefix = f"{prefix}/" if prefix else ""
    bucket = ObjectBucket(parts.netloc, None, None)
    names: dict[str, dict[ObjectName, int]] = {}
    states: dict[tuple[str, ObjectName], str] = {}
    wheels: dict[str, Wheel] = {}
    try:
        bucket.check()
        start = prefix if endpoint is None else f"{prefix}{endpoint}/v{VERSION}/"
        for each in bucket.listed(start):
            quoted, _, rest = each.key.removeprefix(prefix).partition("/")
            parsed = parse(rest.removeprefix(f"v{VERSION}/"))
            if parsed is None:
                continue
            name, is_state = parsed
            if is_state:
                states[unquote(quoted), name] = each.etag
            else:
                names.setdefault(unquote(quoted), {})[name] = each.size
        for place, sizes in names.items():
            wheel = wheels[place] = _wheel(url, place)
            committed = {b: wheel.batches.decision(b) for b in {n.batch for n in sizes} if b}
            for name, size in sizes.items():
                decision = committed.get(name.batch)
                if not name.batch or (decision is not None and decision.counts(name)):
                    yield Part(place, name, states.get((place, name)), size)
    finally:
        bucket.close()
        for wheel in wheels.values():
            wheel.bucket.close()


def _counted(url: str, parts: Iterable[Part]) -> dict[tuple[str, int], list[int]]:
    """What a task finds in its objects: messages, their bytes, and bytes stored."""
    wheels: dict[str, Wheel] = {}
    found: dict[tuple[str, int], list[int]] = {}
    try:
        for part in parts:
            wheel = wheels.get(part.endpoint)
            if wheel is None:
                wheel = wheels[part.endpoint] = _wheel(url, part.endpoint)
            share = part.stored_bytes // max(1, part.name.count)
            for _, line, _ in wheel.present(Waiting(part.name, part.state_etag)):
                message = message_of(line)
                day_ms = line.due_ms - line.due_ms % DAY_MS
                _add(found, (part.endpoint, day_ms), (1, _size(message), share))
            wheel.forget(part.name)
    finally:
        for wheel in wheels.values():
            wheel.bucket.close()
    return found


def _size(message: StoredMessage) -> int:
    return len(message.body) + size_of("", message.attributes)


def _wheel(url: str, endpoint: str) -> Wheel:
    wheel = wheel_of(url.partition("?")[0], endpoint)
    assert wheel is not None, "its URL is an S3 store's"
    return wheel


def _add(
    found: dict[tuple[str, int], list[int]], key: tuple[str, int], sums: Iterable[int]
) -> None:
    before = found.get(key, (0, 0, 0))
    found[key] = [a + b for a, b in zip(before, sums, strict=True)]
