"""Ways to delay messages, each with its bill: SQS hops, parking, and AWS's other schedulers.

Every bill ends with the message in the destination queue. What its receiver pays is the same for
all and left out, as are free tiers, volume discounts and data transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, comb, exp
from typing import Final

from sqsdelay.core.delay import SOONEST_SECONDS
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.workload import (
    CHUNK_BYTES,
    GATHERED_SECONDS,
    LAMBDA_POLLERS,
    Bill,
    Line,
    Workload,
    dispatcher_line,
    hop_lines,
    idle_polling,
    last_send,
    schedule_lines,
)
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import (
    DELAY_CONSUMER_MEMORY_MB,
    GATHERING_SECONDS,
    MAX_BATCH_ENTRIES,
    MAX_DYNAMODB_ITEM_BYTES,
    MAX_MESSAGE_TIMER_SECONDS,
    MAX_RETENTION_SECONDS,
    SCHEDULE_SECONDS,
)

_GB: Final = 2**30
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
MONTH_SECONDS: Final = 365 * _DAY // 12

Lines = tuple[Line, ...]

_EXACT: Final = 200
_CROWDED: Final = 50


@lru_cache(maxsize=1000)
def _spread(messages: int, cells: int, cost: Callable[[int], Fraction | int]) -> Fraction:
    """What messages that are spread by chance over some cells cost in all: so much for so many of a cell.

    Up to `_EXACT` messages by the odds of each number, of more by Poisson's. In crowded cells chance
    evens out.
    """
    mean = messages / cells
    if mean > _CROWDED:
        return cells * Fraction(cost(-(-messages // cells)))
    if messages <= _EXACT:
        odds = [comb(messages, n) * (cells - 1) ** (messages - n) for n in range(messages + 1)]
        weighed = sum(Fraction(ways) * cost(n) for n, ways in enumerate(odds) if n)
        return weighed / Fraction(cells) ** (messages - 1)
    total, chance = 0.0, exp(-mean)
    for n in range(1, 4 * _CROWDED):
        chance *= mean / n
        total += chance * float(cost(n))
    return cells * Fraction(total).limit_denominator(10**6)


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

IDLE_READ_UNITS: Final = 19
"""What a dispatcher function that finds nothing due reads of a store of eight shards: their leases, twice;
near and far messages of each, twice; the hours. ``benchmarks/cost.py`` meters it."""

HOURLY_WRITES: Final = 2 * SHARDS + 1
"""Each hour the cursors of all shards move on, and one hour more is noted in which messages are due."""

SETTINGS_READS: Final = 2
"""A process that stores messages reads the table's version and its shards anew after `SETTINGS_SECONDS`; one
that asks for amendments, the version once more."""

SETTINGS_SECONDS: Final = 10

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
        pages = -(-messages * size // _READ_UNIT_BYTES)
        return Fraction(3 * pages - 1, 2)

    return units


def _in_dynamodb(load: Workload, prices: Prices, hops: int) -> Lines | str:
    if item_bytes(load) > MAX_DYNAMODB_ITEM_BYTES:
        return (
            f"a DynamoDB item holds {MAX_DYNAMODB_ITEM_BYTES} bytes, this one has "
            f"{item_bytes(load)}; such messages would hop: use an S3 or a PostgreSQL store"
        )
    write, read, month = _dynamodb_prices(load, prices)
    claims = max(
        -(-load.together // CLAIMED),
        -(-load.together * load.message_bytes // _CLAIMED_BYTES),
    )
    in_a_claim = -(-load.together // claims)
    leases = load.releases * claims * 2 * _spread(in_a_claim, SHARDS, bool)
    units = claims * (CLAIM_READ_UNITS + _spread(in_a_claim, SHARDS, _read_units(item_bytes(load))))
    lookups = load.messages if load.own_ids else 0
    stored = load.messages * (item_bytes(load) + STORAGE_OVERHEAD_BYTES) + lookups * LOOKUP_BYTES
    # What is released stays until it expires.
    months = Fraction(load.delay_seconds + MAX_RETENTION_SECONDS, MONTH_SECONDS)
    amendments = AMENDMENT_READS * load.requests if hops else 0
    settings = (SETTINGS_READS + min(hops, 1)) * load.arrivals(SETTINGS_SECONDS)
    return (
        Line("DynamoDB write units (put)", load.messages * write_units(load), write),
        Line("DynamoDB write units (look-ups by ids of your own)", lookups, write),
        Line("DynamoDB lease writes (two for each shard released from)", leases, write),
        Line("DynamoDB read units (queries)", load.releases * units, read),
        Line("DynamoDB read units (whether any message was cancelled or moved)", amendments, read),
        Line(f"DynamoDB read units (settings, every {SETTINGS_SECONDS} s)", settings, read),
        Line("DynamoDB storage, GB-months", Fraction(stored, _GB) * months, month),
        last_send(load.released_requests, prices),
        dispatcher_line(load, prices),
    )


def _dynamodb_prices(load: Workload, prices: Prices) -> tuple[Fraction, Fraction, Fraction]:
    """Of a write unit, a read unit and a GB-month."""
    table = "dynamodb_ia" if load.infrequent_access else "dynamodb"
    write, read, month = (
        getattr(prices, f"{table}_{unit}") for unit in ("write_unit", "read_unit", "gb_month")
    )
    return write, read, month


def _dynamodb_runs(load: Workload, prices: Prices) -> Lines:
    write, read, _ = _dynamodb_prices(load, prices)
    runs, hours = load.delay_seconds // SCHEDULE_SECONDS, load.delay_seconds // _HOUR
    reads = runs * IDLE_READ_UNITS + hours * (CLAIM_READ_UNITS + SHARDS)
    return (
        Line(
            f"DynamoDB read units (dispatcher, every {SCHEDULE_SECONDS} s)", reads, read, fixed=True
        ),
        Line("DynamoDB write units (cursors, hourly)", hours * HOURLY_WRITES, write, fixed=True),
        *schedule_lines(load, prices),
    )


GROUP: Final = 5_000
"""Messages written as one object, where they are sent in tens and many arrive together."""

RELEASED: Final = 500
"""Messages of a dispatcher's batch; a lease and a checkpoint are written."""

RELEASED_SECONDS: Final = 600
"""Messages that are due within so long are released together."""

SPLIT_FROM: Final = 20_000
"""A day with so many is split into slots, and a release meets two. Others wait in up to four objects,
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

LOOKUP_OBJECT_BYTES: Final = 128
"""A look-up's key and content."""

PACKED_BYTES: Final = 520
"""Of a copy in a message of the parking queue, besides its body, as JSON."""

LINE_BYTES: Final = 60
"""Of an object's line besides the body, compressed: id, due time, names. Bodies are not counted on to
compress."""

RECEIVERS: Final = 2
"""Long polls of a worker."""

LOOK_SECONDS: Final = 60
"""How often a dispatcher lists what has come near."""

SWEEP_LISTS: Final = 4
"""Listings a day that look for what can be forgotten."""


def _in_s3_from(
    load: Workload, prices: Prices, hops: int, gathered: Fraction | int, *, lookup: bool
) -> Lines:
    """From when so many messages at a time are written as an object."""
    in_object = min(gathered, max(1, OBJECT_BYTES // (load.message_bytes + LINE_BYTES)))
    objects = max(Fraction(1), Fraction(load.messages) / in_object)
    claims = max(
        Fraction(1),
        Fraction(load.together, RELEASED),
        Fraction(load.together * load.message_bytes, RELEASED_BYTES),
    )
    releases = ceil(load.releases)
    in_a_day = min(load.messages, load.together * _DAY // RELEASED_SECONDS)
    split = in_a_day >= SPLIT_FROM or in_a_day * load.message_bytes >= SPLIT_BYTES
    small = in_object < SMALL and in_object * load.message_bytes < SMALL_BYTES
    # Leased, read and written anew, once: where it is near.
    rewritten = objects if split or (small and objects >= MERGED_FROM) else 0
    leases = releases * (max(claims, Fraction(2)) if split else claims * -(-in_a_day // GROUP))
    # Each release is leased, checkpointed and listed.
    merged = 2 * ceil(Fraction(load.messages, GROUP)) if rewritten else 0
    writes = rewritten + merged + 2 * leases + releases * claims
    reads = 2 * rewritten + leases + (releases if split else 0)
    lookups = load.messages if lookup else 0
    amendments = AMENDMENT_READS * objects if hops else 0
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    stored = load.messages * (load.message_bytes + LINE_BYTES) + lookups * LOOKUP_OBJECT_BYTES
    return (
        Line("S3 PUT requests (objects)", objects, prices.s3_put),
        Line("S3 PUT and LIST requests (merge, lease, checkpoint)", writes, prices.s3_put),
        Line("S3 GET requests", reads + amendments, prices.s3_get),
        Line("S3 PUT requests (look-ups by ids of your own)", lookups, prices.s3_put),
        Line("S3 GET requests (look-ups by ids of your own)", 2 * lookups, prices.s3_get),
        Line("S3 storage, GB-months", Fraction(stored, _GB) * months, prices.s3_gb_month),
        last_send(load.released_requests, prices),
    )


def _in_s3(load: Workload, prices: Prices, hops: int) -> Lines:
    """By a sender, an object for each call; by a worker, for what comes within ten seconds."""
    if load.in_tens:
        gathered: Fraction | int = GROUP
    else:
        calls = load.arrivals(GATHERED_SECONDS) if hops else load.requests
        gathered = Fraction(load.messages) / calls
    return _in_s3_from(load, prices, hops, gathered, lookup=load.own_ids)


def _s3_runs(load: Workload, prices: Prices) -> Lines:
    looks = load.delay_seconds // LOOK_SECONDS + SWEEP_LISTS * load.delay_seconds // _DAY
    what = f"S3 LIST requests (dispatcher, every {LOOK_SECONDS} s)"
    return (Line(what, looks, prices.s3_put, fixed=True),)


def _in_s3_by_functions(load: Workload, prices: Prices, hops: int) -> Lines:
    """As ``-c store=s3`` deploys it, without look-ups: one hop, the parking queue, then S3 until the
    function sends it.

    Copies that came together share messages of the parking queue, of 64 KiB each at most; ten of these
    are received and deleted at a time. What is larger is parked by the delay consumer, a batch an object.
    """
    packed = load.message_bytes + PACKED_BYTES
    in_group = CHUNK_BYTES // packed
    if in_group == 0:
        parked = _in_s3_from(load, prices, hops, load.per_request, lookup=False)
        return (*parked, dispatcher_line(load, prices))
    in_call = -(-load.per_request // in_group)
    sent = load.requests * -(-load.per_request * packed // CHUNK_BYTES)
    # What came since it was emptied last.
    times, messages = (1, load.messages) if load.in_tens else (load.releases, load.together)
    groups = -(-messages // load.per_request) * in_call
    deleted = times * _tens(groups)
    in_one = Fraction(messages * packed * times, deleted)
    received = deleted * ceil(in_one / CHUNK_BYTES)
    what = "SQS standard requests (parking queue: send, receive, delete)"
    gathered = GROUP if load.in_tens else load.together
    return (
        Line(what, sent + received + deleted, prices.sqs_standard_request),
        *_in_s3_from(load, prices, hops, gathered, lookup=False),
        dispatcher_line(load, prices),
    )


def _s3_function_runs(load: Workload, prices: Prices) -> Lines:
    gathered = load.delay_seconds // GATHERING_SECONDS
    what = f"SQS standard requests (parking queue, every {GATHERING_SECONDS} s)"
    return (
        Line(what, gathered, prices.sqs_standard_request, fixed=True),
        *schedule_lines(load, prices, every_seconds=GATHERING_SECONDS, schedule="parking schedule"),
        *_s3_runs(load, prices),
        *schedule_lines(load, prices),
    )


SCHEDULE_BYTES: Final = 256 * 1024
"""Input of a schedule at most. Source: EventBridge Scheduler quotas."""

SCHEDULE_OVERHEAD_BYTES: Final = 700
"""What sqsdelay's input holds besides body and attributes, as JSON."""

_ESCAPED: Final = Fraction(9, 8)
"""Bytes that a byte takes in it: assumed is a quote in eight characters, as in a body that is JSON."""


def _no_schedule(size: int, remedy: str) -> str:
    return f"a schedule holds {SCHEDULE_BYTES} bytes, this one has {size}; {remedy}"


FIRED_MS: Final = 8
"""Assumed for a message of a run that empties the parking queue: its share of three calls, and a look for its
amendment."""

EMPTY_MS: Final = 1_100
"""What a run takes that finds nothing (more): its last receive waits for a second."""


def _in_a_schedule(load: Workload, prices: Prices, hops: int) -> Lines | str:  # noqa: ARG001
    """Made one by one, it fires into the parking queue, which a function empties every five minutes.

    What is due in the same five minutes shares requests: what is due together, and by chance what is due
    apart, as many as come in that time if a delay's messages come evenly during one delay.
    """
    size = int(load.message_bytes * _ESCAPED) + SCHEDULE_OVERHEAD_BYTES
    if size > SCHEDULE_BYTES:
        return _no_schedule(size, "such messages would hop: use an S3 store")
    runs, releases = max(1, load.delay_seconds // GATHERING_SECONDS), ceil(load.releases)
    received = _spread(releases, runs, lambda n: _tens(n * load.together))
    billed = _spread(releases, runs, lambda n: load.billed_in_tens(n * load.together))
    alone, standard = replace(load, batch=1).billed_requests, prices.sqs_standard_request
    return (
        _invocations(load, prices),
        Line("SQS standard requests (sent by the schedule, one by one)", alone, standard),
        Line("SQS standard requests (parking queue: receive, delete)", billed + received, standard),
        _emptying("parking queue", load.messages * FIRED_MS, prices),
        last_send(billed, prices),
    )


def _emptying(what: str, milliseconds: int, prices: Prices, *, fixed: bool = False) -> Line:
    used = Fraction(milliseconds * DELAY_CONSUMER_MEMORY_MB, 1000 * 1024)
    return Line(f"Lambda GB-seconds ({what})", used, prices.lambda_arm64_gb_second, fixed=fixed)


def _schedule_runs(load: Workload, prices: Prices) -> Lines:
    runs, sqs = load.delay_seconds // GATHERING_SECONDS, prices.sqs_standard_request
    return (
        Line("SQS standard requests (parking queue, last receives)", runs, sqs, fixed=True),
        Line("Lambda requests (parking queue)", runs, prices.lambda_request, fixed=True),
        _emptying("parking queue, idle", runs * EMPTY_MS, prices, fixed=True),
    )


def _tens(messages: int) -> int:
    return -(-messages // MAX_BATCH_ENTRIES)


def _invocations(load: Workload, prices: Prices) -> Line:
    price = prices.eventbridge_scheduler_invocation
    return Line("EventBridge Scheduler invocations", load.messages, price)


def _alone(load: Workload, prices: Prices) -> Line:
    return last_send(replace(load, delay_seconds=0, batch=1).billed_requests, prices)


def _eventbridge(load: Workload, prices: Prices) -> Lines | str:
    if load.message_bytes > SCHEDULE_BYTES:
        return _no_schedule(load.message_bytes, "send a pointer")
    return (_invocations(load, prices), _alone(load, prices))


STEP_FUNCTIONS_TRANSITIONS: Final = 2
"""The least: a Wait state and a task that sends the message."""

STEP_FUNCTIONS_MAX_SECONDS: Final = 365 * _DAY
"""Longest standard execution. Source: Step Functions quotas."""


def _step_functions(load: Workload, prices: Prices) -> Lines | str:
    if load.delay_seconds >= STEP_FUNCTIONS_MAX_SECONDS:
        return (
            f"an execution ends after {STEP_FUNCTIONS_MAX_SECONDS} s (one year), the send included; "
            "use a shorter delay"
        )
    what = f"Step Functions transitions ({STEP_FUNCTIONS_TRANSITIONS} a message)"
    transitions = load.messages * STEP_FUNCTIONS_TRANSITIONS
    return (Line(what, transitions, prices.step_functions_transition), _alone(load, prices))


SEED_OPERATIONS_PER_CYCLE: Final = 2
"""NServiceBus's documentation counts dequeue and requeue."""


def _formula(load: Workload, prices: Prices) -> Lines:
    cycles = load.delay_seconds // MAX_MESSAGE_TIMER_SECONDS if load.hops else 0
    operations = load.messages * cycles * SEED_OPERATIONS_PER_CYCLE
    return (Line("SQS FIFO requests (2 a cycle)", operations, prices.sqs_fifo_request),)


def documented_formula(load: Workload, prices: Prices) -> Bill:
    """NServiceBus's documentation: two FIFO operations per whole cycle of 900 s, nothing else."""
    return bill("formula", load, prices)


def _none(_load: Workload, _prices: Prices) -> Lines:
    return ()


WATCHED: Final = {
    "no store": (8, 5),
    "-c store=scheduler": (8, 8),
    "-c store=dynamodb": (12, 8),
    "-c store=s3": (13, 9),
}
"""Custom metrics of the functions, as if each was told every hour, and alarms: of an endpoint with a standard
queue. There is a dashboard, too."""


def watching(deploy: str, load: Workload, prices: Prices) -> Lines:
    """What CloudWatch takes for a deployed endpoint meanwhile."""
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    metrics, alarms = WATCHED[deploy]
    return tuple(
        Line(f"CloudWatch {what}, months", number * months, price, fixed=True)
        for what, number, price in (
            ("metrics", metrics, prices.cloudwatch_metric_month),
            ("alarms", alarms, prices.cloudwatch_alarm_month),
            ("dashboard", 1, prices.cloudwatch_dashboard_month),
        )
    )


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to delay.

    Args:
        name: in words.
        stored: of one that parks, what its place takes, after so many hops; or why it cannot be.
        runs: what runs meanwhile, besides the polls of the delay queue.
        lines: of one that is not sqsdelay's, all of it; or why it cannot be.
        hops: before it is parked.
        deploy: what ``cdk deploy`` is told for it, None where it is not deployed.
        functions: whether functions move what hops, or a worker.
        by_sender: whether the sender parks; then it is not recommended, for it is not all in the deployment.
    """

    name: str
    stored: Callable[[Workload, Prices, int], Lines | str] | None = None
    runs: Callable[[Workload, Prices], Lines] = _none
    lines: Callable[[Workload, Prices], Lines | str] | None = None
    hops: int = 0
    deploy: str | None = None
    functions: bool = True
    by_sender: bool = False

    def made(self, load: Workload, prices: Prices) -> Lines | str:
        """The lines of its bill, or why it cannot be."""
        if self.lines is not None:
            return self.lines(load, prices)
        if load.hops == 0:
            return (last_send(load.billed_requests, prices),)
        parks = self._parks(load)
        if parks:
            assert self.stored is not None
            stored = self.stored(load, prices, self.hops)
        else:
            stored = (last_send(load.billed_requests, prices),)
        if isinstance(stored, str):
            return stored
        hopped = hop_lines(
            load, self.hops if parks else load.hops, prices, functions=self.functions
        )
        pollers = LAMBDA_POLLERS if self.functions else RECEIVERS
        lines = (
            *hopped,
            *stored,
            idle_polling(load, prices, pollers=pollers),
            *self.runs(load, prices),
            *(watching(self.deploy, load, prices) if self.deploy else ()),
        )
        return tuple(line for line in lines if line.quantity or line.fixed)

    def _parks(self, load: Workload) -> bool:
        left = load.delay_seconds - self.hops * load.hop_seconds
        if self.stored is _in_a_schedule and left < SOONEST_SECONDS:
            return False
        return self.stored is not None and load.parks(after_hops=self.hops)


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "formula": Strategy("NServiceBus's documented formula", lines=_formula),
    "relay": Strategy("hops", deploy="no store"),
    "parked": Strategy(
        "DynamoDB, parked by the delay consumer",
        _in_dynamodb,
        _dynamodb_runs,
        hops=1,
        deploy="-c store=dynamodb",
    ),
    "stored": Strategy(
        "DynamoDB, parked by the sender",
        _in_dynamodb,
        _dynamodb_runs,
        deploy="-c store=dynamodb",
        by_sender=True,
    ),
    "parked-in-s3": Strategy("S3, parked by a worker", _in_s3, _s3_runs, hops=1, functions=False),
    "parked-in-s3-by-functions": Strategy(
        "S3, parked by functions",
        _in_s3_by_functions,
        _s3_function_runs,
        hops=1,
        deploy="-c store=s3",
    ),
    "stored-in-s3": Strategy("S3, parked by the sender", _in_s3, _s3_runs),
    "scheduled": Strategy(
        "EventBridge Scheduler, parked by the delay consumer",
        _in_a_schedule,
        _schedule_runs,
        hops=1,
        deploy="-c store=scheduler",
    ),
    "scheduled-by-sender": Strategy(
        "EventBridge Scheduler, parked by the sender",
        _in_a_schedule,
        _schedule_runs,
        deploy="-c store=scheduler",
        by_sender=True,
    ),
    "eventbridge-scheduler": Strategy("EventBridge Scheduler alone", lines=_eventbridge),
    "step-functions": Strategy("Step Functions", lines=_step_functions),
}
"""By the code that JSON has."""


def bill(code: str, load: Workload, prices: Prices) -> Bill:
    """What one strategy costs.

    Raises:
        ConfigurationError: a code that is not known.
    """
    if code not in STRATEGIES:
        raise InvalidSetting(f"strategy {code!r} is not known; use {', '.join(STRATEGIES)}")
    strategy = STRATEGIES[code]
    made = strategy.made(load, prices)
    if isinstance(made, str):
        return Bill(strategy=code, name=strategy.name, impossible=made)
    return Bill(strategy=code, name=strategy.name, lines=made)


def bills(load: Workload, prices: Prices) -> list[Bill]:
    """The bill of every strategy."""
    return [bill(code, load, prices) for code in STRATEGIES]
