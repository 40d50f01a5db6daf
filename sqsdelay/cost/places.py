"""What places to park in, hops and functions take for a workload: requests, units, storage, runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from math import ceil
from typing import Final

from sqsdelay.core import limits
from sqsdelay.cost.workload import CHUNK_BYTES, DISPATCH_MS, FUNCTION_MS, Workload, gb_seconds

_GB: Final = 2**30
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
MONTH_SECONDS: Final = 365 * _DAY // 12
Used = Mapping[str, Fraction | int]
"""How much of what; the first words tell its price, see `strategies.UNITS`."""
_CROWDED: Final = 50


@lru_cache(maxsize=1000)
def _spread(messages: int, cells: int, cost: Callable[[int], Fraction | int]) -> Fraction:
    """What messages that are spread by chance over some cells cost in all, by the odds of each
    number in a cell; in crowded cells chance evens out."""
    if messages > _CROWDED * cells:
        return cells * Fraction(cost(-(-messages // cells)))
    total, chance = 0.0, (1 - 1 / cells) ** messages
    for n in range(1, min(messages, 4 * _CROWDED) + 1):
        chance *= (messages - n + 1) / n / (cells - 1)
        total += chance * float(cost(n))
    return cells * Fraction(total).limit_denominator(10**9)


def _tens(messages: int) -> int:
    return -(-messages // limits.MAX_BATCH_ENTRIES)


def last_send(requests: Fraction | int) -> Used:
    """What every way ends with."""
    return {"SQS standard requests (send to the destination)": requests}


def _released(load: Workload) -> Used:
    """It, in tens of each release, as full as 1 MiB allows."""
    return last_send(load.releases * load.billed_in_tens(load.together))


LOGGED_GB: Final = Fraction(525, _GB)
"""What a run writes to its log: its metrics, where no ledger is on. Source: ``benchmarks.ledger``."""


def invoked(function: str, times: Fraction | int, memory_mb: int, ms: int = FUNCTION_MS) -> Used:
    """So many runs of a function."""
    return {
        f"Lambda requests ({function})": times,
        f"Lambda GB-seconds ({function}, {ms} ms a run)": times * gb_seconds(memory_mb, ms),
        f"Logs, GB ({function})": times * LOGGED_GB,
    }


def _dispatcher_runs(load: Workload) -> Used:
    """For the whole delay, as if they found nothing."""
    runs = load.delay_seconds // limits.SCHEDULE_SECONDS
    return invoked("dispatcher's schedule", runs, limits.DISPATCHER_MEMORY_MB)


EMPTY_MS: Final = 1_100
"""What a run takes that finds nothing (more) in a parking queue: its last receive waits for a second."""


def _parking_runs(load: Workload, memory_mb: int) -> Used:
    """The same of a function that empties a parking queue."""
    runs = load.delay_seconds // limits.GATHERING_SECONDS
    return {
        f"SQS standard requests (parking queue, every {limits.GATHERING_SECONDS} s)": runs,
        **invoked("parking queue's schedule", runs, memory_mb, EMPTY_MS),
    }


def _dispatched(load: Workload) -> Used:
    """What the messages add to the dispatcher's runs, which its schedule pays for."""
    seconds = load.messages * gb_seconds(limits.DISPATCHER_MEMORY_MB, DISPATCH_MS)
    return {f"Lambda GB-seconds (dispatcher, {DISPATCH_MS} ms a message)": seconds}


GATHERED_SECONDS: Final = 10
"""A worker gathers copies, to park and to delete them, for so long."""


def hopped(load: Workload, hops: int, *, functions: bool) -> Used:
    """So many hops: each is sent to the delay queue, received, and deleted; and the function that does it."""
    deleted: Fraction | int = load.runs if functions else _tens(load.messages)
    if not (functions or load.in_tens):
        spans = load.arrivals(GATHERED_SECONDS)
        deleted = spans * -(-load.messages // (spans * limits.MAX_BATCH_ENTRIES))
    requests = hops * (load.billed_requests + load.billed_receives + deleted)
    runs = invoked("delay consumer", hops * load.runs, limits.DELAY_CONSUMER_MEMORY_MB)
    used = {"SQS FIFO requests (send, receive, delete a hop)": requests}
    return {**used, **runs} if functions else used


SHARDS: Final = 8
"""Of a DynamoDB store, unless it is told another number. Each has a lease."""
ITEM_BYTES: Final = 60
STORAGE_OVERHEAD_BYTES: Final = 100
LOOKUP_BYTES: Final = 250
"""Of an item besides body and attributes: names, keys of an endpoint with a short name, expiry; what DynamoDB
adds to each for storing it (DynamoDB guide, "Storage"); a look-up by an id of your own, as stored."""
CLAIMED: Final = 700
"""Messages of a claim of the function. It asks for a thousand, and shards are not equally full."""
_CLAIMED_BYTES: Final = SHARDS * 4 * 2**20
"""Bodies of a claim: 4 MiB of each shard."""
CLAIM_READ_UNITS: Final = 9
"""What a claim reads that finds nothing more: leases; near and far messages of each shard."""
IDLE_READ_UNITS: Final = 15
"""What a dispatcher function that finds nothing due reads of a store of eight shards: their leases, twice;
near and far messages of each. A test meters it."""
HOURLY_WRITES: Final = 2 * SHARDS + 1
"""Each hour the cursors of all shards move on, and one hour more is noted in which messages are due."""
SETTINGS_READS: Final = 2
SETTINGS_SECONDS: Final = 10
"""The table's version and its shards are read anew after so long; for amendments, the version once more."""
AMENDMENT_READS: Final = 2
"""The delay consumer asks before it decides, and again once it has parked, whether there are amendments: for
all copies of a run at once, where none was left in the last two weeks, otherwise for each."""


@lru_cache(maxsize=1000)
def _read_units(size: int) -> Callable[[int], Fraction]:
    """Of 4 KiB, of a shard's due messages: all under its lease, and before that, eventually consistent, which
    is half the price, to see what is due."""
    return lambda messages: Fraction(3 * -(-messages * size // 4096) - 1, 2)


def in_dynamodb(load: Workload, hops: int) -> Used | str:
    together, size = load.together, load.message_bytes + ITEM_BYTES
    if size > limits.MAX_DYNAMODB_ITEM_BYTES:
        return (
            f"a DynamoDB item holds {limits.MAX_DYNAMODB_ITEM_BYTES} bytes, this one has {size}; "
            "such messages would hop: use an S3 or a PostgreSQL store"
        )
    claims = max(-(-together // CLAIMED), -(-together * load.message_bytes // _CLAIMED_BYTES))
    in_a_claim = -(-together // claims)
    leases = load.releases * claims * 2 * _spread(in_a_claim, SHARDS, bool)
    units = claims * (CLAIM_READ_UNITS + _spread(in_a_claim, SHARDS, _read_units(size)))
    lookups = load.messages if load.own_ids else 0
    stored = load.messages * (size + STORAGE_OVERHEAD_BYTES) + lookups * LOOKUP_BYTES
    # What is released stays until it expires.
    months = Fraction(load.delay_seconds + limits.MAX_RETENTION_SECONDS, MONTH_SECONDS)
    amendments = AMENDMENT_READS * load.runs if hops else 0
    settings = (SETTINGS_READS + min(hops, 1)) * load.arrivals(SETTINGS_SECONDS)
    return {
        # Of 1 KiB. Time to live deletes for nothing.
        "DynamoDB write units (put)": load.messages * -(-size // 1024),
        "DynamoDB write units (look-ups by ids of your own)": lookups,
        "DynamoDB lease writes (two for each shard released from)": leases,
        "DynamoDB read units (queries)": load.releases * units,
        "DynamoDB read units (whether any message was cancelled or moved)": amendments,
        f"DynamoDB read units (settings, every {SETTINGS_SECONDS} s)": settings,
        "DynamoDB storage, GB-months": Fraction(stored, _GB) * months,
        **_released(load),
        **_dispatched(load),
    }


def dynamodb_runs(load: Workload) -> Used:
    runs, hours = load.delay_seconds // limits.SCHEDULE_SECONDS, load.delay_seconds // _HOUR
    reads = runs * IDLE_READ_UNITS + hours * (CLAIM_READ_UNITS + SHARDS)
    return {
        f"DynamoDB read units (dispatcher, every {limits.SCHEDULE_SECONDS} s)": reads,
        "DynamoDB write units (cursors, hourly)": hours * HOURLY_WRITES,
        **_dispatcher_runs(load),
    }


GROUP: Final = 5_000
"""Messages written as one object, where they are sent in tens and many arrive together."""
RELEASED: Final = 500
RELEASED_SECONDS: Final = 600
"""What is due within so long is released together, so many at a time: each is a lease and a checkpoint."""
SLOTS: Final = (30 * _DAY, _DAY, 900)
"""A message waits in a slot of the longest of these that does not begin within the next length."""
SPLIT_FROM: Final = 20_000
"""A slot with so many is split into those of the next length once it is near."""
OBJECT_BYTES: Final = 8 * 2**20
"""An object at most, before it is compressed."""
RELEASED_BYTES: Final = 4 * OBJECT_BYTES
SPLIT_BYTES: Final = 16 * OBJECT_BYTES
"""Of a claim; and of a slot that is split. As for messages."""
MERGED_FROM: Final = 4
MERGED: Final = 256
SMALL: Final = GROUP // 4
SMALL_BYTES: Final = OBJECT_BYTES // 4
"""So many objects at least, and at most, are merged that have less, in messages and in bytes."""
LINE_BYTES: Final = 60
LOOKUP_OBJECT_BYTES: Final = 128
PACKED_BYTES: Final = 520
"""Of an object's line besides the body, compressed (bodies are not counted on to compress); of a look-up's
key and content; of a copy in a message of the parking queue besides its body, as JSON."""
LOOK_SECONDS: Final = 60
SWEEP_LISTS: Final = 4
"""How often a dispatcher lists what has come near; and a day's listings of what can be forgotten."""


def _turned(
    load: Workload, messages: Fraction, objects: Fraction, level: int, fit: int
) -> tuple[Fraction, Fraction, Fraction]:
    """What it takes to write messages anew that lie in so many objects, in slots of one length, until they
    are released: PUTs, GETs, and how many objects they lie in then."""
    spans = [max(Fraction(1), load.releases * RELEASED_SECONDS / length) for length in SLOTS]
    here, size = spans[level], load.message_bytes
    in_object, in_slot = messages / objects, Fraction(load.messages) / here
    large = level + 1 < len(SLOTS) and (in_slot >= SPLIT_FROM or in_slot * size >= SPLIT_BYTES)
    small = in_object < SMALL and in_object * size < SMALL_BYTES
    if small and objects >= MERGED_FROM * here and not (large and objects <= MERGED * here):
        least = max(here, objects / MERGED)
    elif large:
        level += 1
        least = spans[level]
        if level + 1 == len(SLOTS):
            least = load.releases * -(-load.together // fit)
    else:
        return Fraction(0), Fraction(0), objects
    anew = max(Fraction(ceil(messages / fit)), least)
    writes, reads, left = _turned(load, messages, anew, level, fit)
    # Each is leased and read, and asked for whether it is still there; each slot is decided on and listed.
    return objects + anew + 2 * here + writes, 2 * objects + reads, left


_Calls = Sequence[tuple[Fraction | int, Fraction | int]]


def _from_objects(load: Workload, hops: int, calls: _Calls, *, lookup: bool = False) -> Used:
    """In S3, written by calls: so many, each of so many messages."""
    fit = max(1, min(GROUP, OBJECT_BYTES // (load.message_bytes + LINE_BYTES)))
    full = [(Fraction(count * (many // fit)), Fraction(fit)) for count, many in calls]
    parts = [(Fraction(count), Fraction(many % fit)) for count, many in calls]
    written = [each for each in (*full, *parts) if all(each)]
    # One that writes several objects writes that they count.
    decided = sum(count for count, many in calls if many > fit)
    # By where the slots of a length begin, a message is written to one of it or of the next.
    months, days = (
        min(Fraction(1), max(Fraction(0), Fraction(load.delay_seconds - finer, longer)))
        for longer, finer in pairwise(SLOTS)
    )
    chances = (months, (1 - months) * days, (1 - months) * (1 - days))
    together, releases = load.together, ceil(load.releases)
    large = -(-together * load.message_bytes // RELEASED_BYTES)
    claims = load.releases * max(-(-together // RELEASED), large)
    in_a_day = min(load.messages, together * _DAY // RELEASED_SECONDS)
    split = in_a_day >= SPLIT_FROM or in_a_day * load.message_bytes >= SPLIT_BYTES
    writes, reads = claims, Fraction(0)
    for (count, many), (level, chance) in product(written, enumerate(chances)):
        puts, gets, left = _turned(load, count * many, count, level, fit)
        share = min(Fraction(1), max(count * many / load.messages, count / releases))
        leases = Fraction(ceil(claims * share))
        if split:
            leases += load.releases * -(-together // fit) - load.releases
        else:
            # A release may end within an object. What was not merged lies in the order of its writing.
            overlap = -(-in_a_day // GROUP)
            across = puts or (overlap == 1 and together % many and many % together)
            leases = leases + left - 1 if across else leases * overlap
        leases = max(left, leases)
        # What is left of an object is noted.
        writes += chance * (puts + 2 * leases - left)
        reads += chance * (gets + leases + left)
    objects = sum(count for count, _ in written)
    lookups = load.messages if lookup else 0
    amendments = AMENDMENT_READS * sum(count for count, many in calls if many) if hops else 0
    stored = load.messages * (load.message_bytes + LINE_BYTES) + lookups * LOOKUP_OBJECT_BYTES
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    return {
        "S3 PUT requests (objects)": objects + decided,
        "S3 PUT and LIST requests (merge, lease, checkpoint)": writes,
        "S3 GET requests": reads + amendments,
        "S3 PUT requests (look-ups by ids of your own)": lookups,
        "S3 GET requests (look-ups by ids of your own)": 2 * lookups,
        "S3 storage, GB-months": Fraction(stored, _GB) * months,
        **_released(load),
    }


def _groups(load: Workload, apart: Fraction | int) -> list[tuple[Fraction, Fraction]]:
    """Calls that write what is gathered: groups of what is sent in tens, otherwise so many."""
    calls = Fraction(max(load.messages, GROUP), GROUP) if load.in_tens else Fraction(apart)
    return [(calls, load.messages / calls)]


def in_s3(load: Workload, hops: int) -> Used:
    """By a sender, an object for each call, and the dispatcher is a function; by a worker, for what comes
    within ten seconds."""
    apart = load.arrivals(GATHERED_SECONDS) if hops else -(-load.messages // load.batch)
    used = _from_objects(load, hops, _groups(load, apart), lookup=load.own_ids)
    return used if hops else {**used, **_dispatched(load)}


def s3_runs(load: Workload) -> Used:
    looks = load.delay_seconds // LOOK_SECONDS + SWEEP_LISTS * load.delay_seconds // _DAY
    return {f"S3 LIST requests (dispatcher, every {LOOK_SECONDS} s)": looks}


def in_s3_by_functions(load: Workload, hops: int) -> Used:
    """As ``-c store=s3`` deploys it, without look-ups: copies that came together share messages of the
    parking queue, of 64 KiB each at most; ten of these are received and deleted at a time. What is larger is
    parked by the delay consumer, a run an object."""
    packed = load.message_bytes + PACKED_BYTES
    in_group = CHUNK_BYTES // packed
    if in_group == 0:
        batches, given = -(-load.messages // load.batch), load.in_a_run
        calls = [(batches * (load.batch // given), given), (batches, load.batch % given)]
        return {**_from_objects(load, hops, calls), **_dispatched(load)}
    groups = load.runs * -(-load.in_a_run // in_group)
    sent = load.runs * -(-load.in_a_run * packed // CHUNK_BYTES)
    # What came since it was emptied last.
    times = 1 if load.in_tens else load.releases
    deleted = times * _tens(ceil(groups / times))
    received = deleted * ceil(Fraction(load.messages * packed) / deleted / CHUNK_BYTES)
    requests = sent + received + deleted
    return {
        "SQS standard requests (parking queue: send, receive, delete)": requests,
        **_from_objects(load, hops, _groups(load, load.releases)),
        **_dispatched(load),
    }


def s3_function_runs(load: Workload) -> Used:
    parking = _parking_runs(load, limits.DISPATCHER_MEMORY_MB)
    return {**parking, **s3_runs(load), **_dispatcher_runs(load)}


SCHEDULE_BYTES: Final = 256 * 1024
"""Input of a schedule, or an execution, at most. Source: quotas of EventBridge Scheduler, Step Functions."""
SCHEDULE_OVERHEAD_BYTES: Final = 700
"""What sqsdelay's input holds besides body and attributes, as JSON."""
_ESCAPED: Final = Fraction(9, 8)
"""Bytes that a byte takes in it: assumed is a quote in eight characters, as in a body that is JSON."""
FIRED_MS: Final = 8
"""Assumed for a message of a run that empties the parking queue: its share of calls to AWS."""


def too_large(size: int, remedy: str, what: str = "a schedule") -> str:
    return f"{what} holds {SCHEDULE_BYTES} bytes, this one has {size}; {remedy}"


def alone(load: Workload) -> int:
    """Requests, as billed, that carry one message each."""
    return replace(load, batch=1).billed_requests


def in_a_schedule(load: Workload, hops: int) -> Used | str:  # noqa: ARG001
    """What is due in the same five minutes shares requests: together, or by chance, evenly in one delay."""
    size = int(load.message_bytes * _ESCAPED) + SCHEDULE_OVERHEAD_BYTES
    if size > SCHEDULE_BYTES:
        return too_large(size, "such messages would hop: use an S3 store")
    runs = load.delay_seconds // limits.GATHERING_SECONDS
    full, rest = divmod(load.messages, load.together)
    received = _spread(full, runs, lambda n: _tens(n * load.together)) + _tens(rest)
    billed = _spread(full, runs, lambda n: load.billed_in_tens(n * load.together))
    billed += load.billed_in_tens(rest) if rest else 0
    seconds = load.messages * gb_seconds(limits.DELAY_CONSUMER_MEMORY_MB, FIRED_MS)
    return {
        "EventBridge Scheduler invocations": load.messages,
        "SQS standard requests (sent by the schedule, one by one)": alone(load),
        "SQS standard requests (parking queue: receive, delete)": billed + received,
        f"Lambda GB-seconds (parking queue, {FIRED_MS} ms a message)": seconds,
        **last_send(billed),
    }


def schedule_runs(load: Workload) -> Used:
    return _parking_runs(load, limits.DELAY_CONSUMER_MEMORY_MB)
