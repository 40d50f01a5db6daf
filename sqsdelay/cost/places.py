"""What places to park in, hops and functions take for a workload: requests, units, storage, runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from sqsdelay import limits
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
    """What messages that are spread by chance over some cells cost in all: so much for so many of a cell.

    By the odds of each number; in crowded cells chance evens out.
    """
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


def _invoked(
    function: str, times: Fraction | int, memory_mb: int, milliseconds: int = FUNCTION_MS
) -> Used:
    return {
        f"Lambda requests ({function})": times,
        f"Lambda GB-seconds ({function})": times * gb_seconds(memory_mb, milliseconds),
    }


def _dispatcher_runs(load: Workload) -> Used:
    """The runs of the dispatcher function for the whole delay, as if they found nothing."""
    runs = load.delay_seconds // limits.SCHEDULE_SECONDS
    return _invoked("dispatcher's schedule", runs, limits.DISPATCHER_MEMORY_MB)


EMPTY_MS: Final = 1_100
"""What a run takes that finds nothing (more) in a parking queue: its last receive waits for a second."""


def _parking_runs(load: Workload, memory_mb: int) -> Used:
    """The same of a function that empties a parking queue."""
    runs = load.delay_seconds // limits.GATHERING_SECONDS
    return {
        f"SQS standard requests (parking queue, every {limits.GATHERING_SECONDS} s)": runs,
        **_invoked("parking queue's schedule", runs, memory_mb, EMPTY_MS),
    }


def _dispatched(load: Workload) -> Used:
    """What the messages add to the dispatcher's runs, which its schedule pays for."""
    seconds = load.messages * gb_seconds(limits.DISPATCHER_MEMORY_MB, DISPATCH_MS)
    return {"Lambda GB-seconds (dispatcher)": seconds}


GATHERED_SECONDS: Final = 10
"""A worker gathers copies, to park and to delete them, for so long."""


def hopped(load: Workload, hops: int, *, functions: bool) -> Used:
    """So many hops: each is sent to the delay queue, received, and deleted; and the function that does it."""
    deleted: Fraction | int = load.requests
    if not (functions or load.in_tens):
        spans = load.arrivals(GATHERED_SECONDS)
        deleted = spans * -(-load.messages // (spans * limits.MAX_BATCH_ENTRIES))
    requests = hops * (2 * load.billed_requests + deleted)
    invoked = _invoked("delay consumer", hops * load.requests, limits.DELAY_CONSUMER_MEMORY_MB)
    return {
        "SQS FIFO requests (send, receive, delete a hop)": requests,
        **(invoked if functions else {}),
    }


SHARDS: Final = 8
"""Of a DynamoDB store, unless it is told another number. Each has a lease."""

ITEM_BYTES: Final = 60
"""Of an item besides body and attributes: names, keys of an endpoint with a short name, expiry."""

STORAGE_OVERHEAD_BYTES: Final = 100
"""DynamoDB adds this to each item. Source: DynamoDB guide, "Storage" considerations of items."""

LOOKUP_BYTES: Final = 250
"""A look-up by an id of your own, as stored."""

_WRITE_UNIT_BYTES: Final = 1024
_READ_UNIT_BYTES: Final = 4096

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
"""A process that stores messages reads the table's version and its shards anew after so long; one that asks
for amendments, the version once more."""

AMENDMENT_READS: Final = 2
"""The delay consumer asks before it decides, and again once it has parked, whether there are amendments:
for a batch of copies, one read each time, where none was left in the last two weeks. Where some were, it
reads each message's."""


def item_bytes(load: Workload) -> int:
    """The item of one message."""
    return load.message_bytes + ITEM_BYTES


def write_units(load: Workload) -> int:
    """Write request units of one message's life in the store: its put. Time to live deletes it."""
    return -(-item_bytes(load) // _WRITE_UNIT_BYTES)


@lru_cache(maxsize=1000)
def _read_units(size: int) -> Callable[[int], Fraction]:
    """What a shard's due messages are read with: all under its lease, and before that, eventually
    consistent, which is half the price, to see what is due."""

    def units(messages: int) -> Fraction:
        return Fraction(3 * -(-messages * size // _READ_UNIT_BYTES) - 1, 2)

    return units


def in_dynamodb(load: Workload, hops: int) -> Used | str:
    if item_bytes(load) > limits.MAX_DYNAMODB_ITEM_BYTES:
        return (
            f"a DynamoDB item holds {limits.MAX_DYNAMODB_ITEM_BYTES} bytes, this one has "
            f"{item_bytes(load)}; such messages would hop: use an S3 or a PostgreSQL store"
        )
    together = load.together
    claims = max(-(-together // CLAIMED), -(-together * load.message_bytes // _CLAIMED_BYTES))
    in_a_claim = -(-together // claims)
    leases = load.releases * claims * 2 * _spread(in_a_claim, SHARDS, bool)
    units = claims * (CLAIM_READ_UNITS + _spread(in_a_claim, SHARDS, _read_units(item_bytes(load))))
    lookups = load.messages if load.own_ids else 0
    stored = load.messages * (item_bytes(load) + STORAGE_OVERHEAD_BYTES) + lookups * LOOKUP_BYTES
    # What is released stays until it expires.
    months = Fraction(load.delay_seconds + limits.MAX_RETENTION_SECONDS, MONTH_SECONDS)
    amendments = AMENDMENT_READS * load.requests if hops else 0
    settings = (SETTINGS_READS + min(hops, 1)) * load.arrivals(SETTINGS_SECONDS)
    return {
        "DynamoDB write units (put)": load.messages * write_units(load),
        "DynamoDB write units (look-ups by ids of your own)": lookups,
        "DynamoDB lease writes (two for each shard released from)": leases,
        "DynamoDB read units (queries)": load.releases * units,
        "DynamoDB read units (whether any message was cancelled or moved)": amendments,
        f"DynamoDB read units (settings, every {SETTINGS_SECONDS} s)": settings,
        "DynamoDB storage, GB-months": Fraction(stored, _GB) * months,
        **last_send(load.released_requests),
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
"""Messages of a dispatcher's batch; a lease and a checkpoint are written."""

RELEASED_SECONDS: Final = 600
"""Messages that are due within so long are released together."""

SPLIT_FROM: Final = 20_000
"""A day with so many is split into slots, and a release leases one. Others wait in up to four objects,
which were written at different times: a release leases each."""

OBJECT_BYTES: Final = 8 * 2**20
"""An object at most, before it is compressed."""

RELEASED_BYTES: Final = 4 * OBJECT_BYTES
SPLIT_BYTES: Final = 16 * OBJECT_BYTES
"""Of a claim; and of a day that is split. As for messages."""

MERGED_FROM: Final = 4
SMALL: Final = GROUP // 4
SMALL_BYTES: Final = OBJECT_BYTES // 4
"""So many objects are merged that have less, in messages and in bytes."""

LINE_BYTES: Final = 60
"""Of an object's line besides the body, compressed: id, due time, names. Bodies are not counted on to
compress."""

LOOKUP_OBJECT_BYTES: Final = 128
"""A look-up's key and content."""

PACKED_BYTES: Final = 520
"""Of a copy in a message of the parking queue, besides its body, as JSON."""

LOOK_SECONDS: Final = 60
"""How often a dispatcher lists what has come near."""

SWEEP_LISTS: Final = 4
"""Listings a day that look for what can be forgotten."""


def _from_objects(
    load: Workload, hops: int, gathered: Fraction | int, *, lookup: bool = False
) -> Used:
    """In S3, from when so many messages at a time are written as an object."""
    in_object = min(gathered, max(1, OBJECT_BYTES // (load.message_bytes + LINE_BYTES)))
    objects = max(Fraction(1), Fraction(load.messages) / in_object)
    together, releases = load.together, ceil(load.releases)
    at_once = Fraction(together * load.message_bytes, RELEASED_BYTES)
    claims = max(Fraction(1), Fraction(together, RELEASED), at_once)
    in_a_day = min(load.messages, together * _DAY // RELEASED_SECONDS)
    split = in_a_day >= SPLIT_FROM or in_a_day * load.message_bytes >= SPLIT_BYTES
    small = in_object < SMALL and in_object * load.message_bytes < SMALL_BYTES
    # Leased, read and written anew, once: where it is near.
    rewritten = objects if split or (small and objects >= MERGED_FROM) else 0
    merged = 2 * -(-load.messages // GROUP) if rewritten else 0
    leases = releases * claims * (1 if split else -(-in_a_day // GROUP))
    # Each release is leased, checkpointed and listed.
    writes = rewritten + merged + 2 * leases + releases * claims
    reads = 2 * rewritten + leases + (releases if split else 0)
    lookups = load.messages if lookup else 0
    amendments = AMENDMENT_READS * objects if hops else 0
    stored = load.messages * (load.message_bytes + LINE_BYTES) + lookups * LOOKUP_OBJECT_BYTES
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    return {
        "S3 PUT requests (objects)": objects,
        "S3 PUT and LIST requests (merge, lease, checkpoint)": writes,
        "S3 GET requests": reads + amendments,
        "S3 PUT requests (look-ups by ids of your own)": lookups,
        "S3 GET requests (look-ups by ids of your own)": 2 * lookups,
        "S3 storage, GB-months": Fraction(stored, _GB) * months,
        **last_send(load.released_requests),
    }


def in_s3(load: Workload, hops: int) -> Used:
    """By a sender, an object for each call; by a worker, for what comes within ten seconds."""
    calls = load.arrivals(GATHERED_SECONDS) if hops else load.requests
    gathered = GROUP if load.in_tens else Fraction(load.messages) / calls
    return _from_objects(load, hops, gathered, lookup=load.own_ids)


def s3_runs(load: Workload) -> Used:
    looks = load.delay_seconds // LOOK_SECONDS + SWEEP_LISTS * load.delay_seconds // _DAY
    return {f"S3 LIST requests (dispatcher, every {LOOK_SECONDS} s)": looks}


def in_s3_by_functions(load: Workload, hops: int) -> Used:
    """As ``-c store=s3`` deploys it, without look-ups: one hop, the parking queue, then S3 until the
    function sends it.

    Copies that came together share messages of the parking queue, of 64 KiB each at most; ten of these
    are received and deleted at a time. What is larger is parked by the delay consumer, a batch an object.
    """
    packed = load.message_bytes + PACKED_BYTES
    in_group = CHUNK_BYTES // packed
    if in_group == 0:
        return {**_from_objects(load, hops, load.per_request), **_dispatched(load)}
    in_call = -(-load.per_request // in_group)
    sent = load.requests * -(-load.per_request * packed // CHUNK_BYTES)
    # What came since it was emptied last.
    times, messages = (1, load.messages) if load.in_tens else (load.releases, load.together)
    deleted = times * _tens(-(-messages // load.per_request) * in_call)
    received = deleted * ceil(Fraction(messages * packed * times, deleted) / CHUNK_BYTES)
    requests = sent + received + deleted
    return {
        "SQS standard requests (parking queue: send, receive, delete)": requests,
        **_from_objects(load, hops, GROUP if load.in_tens else load.together),
        **_dispatched(load),
    }


def s3_function_runs(load: Workload) -> Used:
    parking = _parking_runs(load, limits.DISPATCHER_MEMORY_MB)
    return {**parking, **s3_runs(load), **_dispatcher_runs(load)}


SCHEDULE_BYTES: Final = 256 * 1024
"""Input of a schedule at most. Source: EventBridge Scheduler quotas."""

SCHEDULE_OVERHEAD_BYTES: Final = 700
"""What sqsdelay's input holds besides body and attributes, as JSON."""

_ESCAPED: Final = Fraction(9, 8)
"""Bytes that a byte takes in it: assumed is a quote in eight characters, as in a body that is JSON."""


def no_schedule(size: int, remedy: str) -> str:
    return f"a schedule holds {SCHEDULE_BYTES} bytes, this one has {size}; {remedy}"


def alone(load: Workload) -> int:
    """Requests, as billed, that carry one message each."""
    return replace(load, batch=1).billed_requests


FIRED_MS: Final = 8
"""Assumed for a message of a run that empties the parking queue: its share of calls to AWS."""


def in_a_schedule(load: Workload, hops: int) -> Used | str:  # noqa: ARG001
    """Made one by one, it fires into the parking queue, which a function empties every five minutes.

    What is due in the same five minutes shares requests: what is due together, and by chance what is due
    apart, as many as come in that time if a delay's messages come evenly during one delay.
    """
    size = int(load.message_bytes * _ESCAPED) + SCHEDULE_OVERHEAD_BYTES
    if size > SCHEDULE_BYTES:
        return no_schedule(size, "such messages would hop: use an S3 store")
    runs, releases = load.delay_seconds // limits.GATHERING_SECONDS, ceil(load.releases)
    received = _spread(releases, runs, lambda n: _tens(n * load.together))
    billed = _spread(releases, runs, lambda n: load.billed_in_tens(n * load.together))
    seconds = load.messages * gb_seconds(limits.DELAY_CONSUMER_MEMORY_MB, FIRED_MS)
    return {
        "EventBridge Scheduler invocations": load.messages,
        "SQS standard requests (sent by the schedule, one by one)": alone(load),
        "SQS standard requests (parking queue: receive, delete)": billed + received,
        "Lambda GB-seconds (parking queue)": seconds,
        **last_send(billed),
    }


def schedule_runs(load: Workload) -> Used:
    return _parking_runs(load, limits.DELAY_CONSUMER_MEMORY_MB)
