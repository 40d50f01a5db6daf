"""Ways to delay messages, each with its bill: SQS hops, parking, and AWS's other schedulers.

Every bill ends with the message in the destination queue. What its receiver pays is the same for
all and left out, as are free tiers, volume discounts and data transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from sqsdelay.core.delay import soonest_seconds
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.workload import (
    CHUNK_BYTES,
    Bill,
    Line,
    Workload,
    dispatcher_line,
    function_lines,
    hop_lines,
    hop_requests,
    idle_polling,
    last_send,
    schedule_lines,
)
from sqsdelay.limits import (
    GATHERING_SECONDS,
    MAX_BATCH_ENTRIES,
    MAX_DYNAMODB_ITEM_BYTES,
    MAX_MESSAGE_TIMER_SECONDS,
    MAX_RETENTION_SECONDS,
    SCHEDULE_SECONDS,
)

ITEM_BYTES: Final = 60
"""Of an item besides body and attributes: names, keys of an endpoint with a short name, expiry."""

STORAGE_OVERHEAD_BYTES: Final = 100
"""DynamoDB adds this to each item. Source: DynamoDB guide, "Storage" considerations of items."""

_WRITE_UNIT_BYTES: Final = 1024
_READ_UNIT_BYTES: Final = 4096

_READS: Final = Fraction(3, 2)
"""A released message's bytes are read twice: once to see what is due, eventually consistent, which is
half the price, and once under the shard's lease."""

LEASED_TOGETHER: Final = 100
"""A lease is written twice a batch: assumed are batches of 100 messages of a shard where ten share a
request, and of one where they are due apart."""

SCHEDULE_BYTES: Final = 256 * 1024
"""Input of a schedule at most. Source: EventBridge Scheduler quotas."""

SCHEDULE_OVERHEAD_BYTES: Final = 500
"""What sqsdelay's input holds besides body and attributes, as JSON."""

_GB: Final = 2**30
MONTH_SECONDS: Final = 365 * 24 * 3600 // 12


def item_bytes(load: Workload) -> int:
    """The item of one message."""
    return load.message_bytes + ITEM_BYTES


def write_units(load: Workload) -> int:
    """Write request units of one message's life in the store: its put. Time to live deletes it."""
    return -(-item_bytes(load) // _WRITE_UNIT_BYTES)


def store_lines(load: Workload, prices: Prices) -> tuple[Line, ...]:
    """Writes, reads and storage of all messages."""
    stored = item_bytes(load) + STORAGE_OVERHEAD_BYTES
    # What is released stays until it expires.
    months = Fraction(load.delay_seconds + MAX_RETENTION_SECONDS, MONTH_SECONDS)
    rare = load.infrequent_access
    write = prices.dynamodb_ia_write_unit if rare else prices.dynamodb_write_unit
    read = prices.dynamodb_ia_read_unit if rare else prices.dynamodb_read_unit
    month = prices.dynamodb_ia_gb_month if rare else prices.dynamodb_gb_month
    return (
        Line(
            what="DynamoDB write units (put)",
            quantity=load.messages * write_units(load),
            unit_price=write,
        ),
        *(
            [
                Line(
                    what="DynamoDB write units (look-ups by ids of your own)",
                    quantity=load.messages,
                    unit_price=write,
                )
            ]
            if load.own_ids
            else []
        ),
        Line(
            what="DynamoDB lease writes (two a batch of a shard)",
            quantity=Fraction(
                2 * load.messages,
                LEASED_TOGETHER if load.batch == MAX_BATCH_ENTRIES else load.batch,
            ),
            unit_price=write,
        ),
        Line(
            what="DynamoDB read units (queries)",
            quantity=load.messages * _READS * Fraction(item_bytes(load), _READ_UNIT_BYTES),
            unit_price=read,
        ),
        Line(
            what="DynamoDB storage, GB-months",
            quantity=Fraction(load.messages * stored, _GB) * months,
            unit_price=month,
        ),
    )


GROUP: Final = 5_000
"""Messages a worker writes as one object, where many arrive together."""

RELEASED: Final = 500
"""Messages of a dispatcher's batch, where many are due together; a lease and a checkpoint are written."""

WRITES_PER_MESSAGE: Final = Fraction(1, 80)
"""Writes and listings while messages wait and are released, where they are many: slots are split and
merged, leased, checkpointed. ``benchmarks/s3_store.py`` counts them and fails above this."""

READS_PER_MESSAGE: Final = Fraction(1, 100)
"""The same for reads."""

LINE_BYTES: Final = 60
"""Of an object's line besides the body, compressed: id, due time, names. Bodies are not counted on to
compress."""

RECEIVERS: Final = 2
"""Long polls of a worker."""

LOOK_SECONDS: Final = 60
"""How often a dispatcher lists what has come near."""


def parked_in_s3(load: Workload, prices: Prices) -> Bill:
    """One hop, then an S3 store until the dispatcher sends it: worker and dispatcher run elsewhere."""
    return _in_s3("parked-in-s3", load, prices, hops=1)


def stored_in_s3(load: Workload, prices: Prices) -> Bill:
    """Put into the S3 store by the sender itself."""
    return _in_s3("stored-in-s3", load, prices, hops=0)


def stored_in_s3_by_id(load: Workload, prices: Prices) -> Bill:
    """The same with a look-up object for each message, whose id is its sender's."""
    bill = stored_in_s3(load, prices)
    if not load.parks(after_hops=0):
        return bill
    line = Line(
        what="S3 PUT requests (look-up objects)",
        quantity=load.messages,
        unit_price=prices.s3_put,
    )
    return replace(bill, lines=(*bill.lines, line))


def parked_in_s3_by_functions(load: Workload, prices: Prices) -> Bill:
    """As ``-c store=s3`` deploys it: one hop, the parking queue, then S3 until the dispatcher function
    sends it. What is due sooner than is parked hops on."""
    strategy = "parked-in-s3-by-functions"
    if load.hops == 0:
        return Bill(strategy=strategy, lines=(last_send(load, prices),))
    parks = load.parks(after_hops=1)
    stored = (
        _parking_queue(load, prices),
        *_store_lines(load, prices),
        dispatcher_line(load, prices),
    )
    return Bill(
        strategy=strategy,
        lines=(
            *hop_lines(load, 1 if parks else load.hops, prices),
            *(stored if parks else ()),
            last_send(load, prices),
            idle_polling(load, prices),
            Line(
                what=f"SQS standard requests (parking queue, every {GATHERING_SECONDS} s)",
                quantity=load.delay_seconds // GATHERING_SECONDS,
                unit_price=prices.sqs_standard_request,
                fixed=True,
            ),
            *schedule_lines(
                load, prices, every_seconds=GATHERING_SECONDS, schedule="parking schedule"
            ),
            _looks(load, prices),
            *schedule_lines(load, prices),
        ),
    )


def _parking_queue(load: Workload, prices: Prices) -> Line:
    """Copies that shared a request to the delay queue share a message; ten of these are received and
    deleted at a time, and a receive is billed for each 64 KiB begun."""
    together = MAX_BATCH_ENTRIES if load.batch == MAX_BATCH_ENTRIES else 1
    calls = -(-load.requests // together)
    received = max(calls, -(-load.messages * load.message_bytes // CHUNK_BYTES))
    return Line(
        what="SQS standard requests (parking queue: send, receive, delete)",
        quantity=load.billed_requests + received + calls,
        unit_price=prices.sqs_standard_request,
    )


def _in_s3(strategy: str, load: Workload, prices: Prices, *, hops: int) -> Bill:
    if not load.parks(after_hops=hops):
        return replace(relay(load, prices), strategy=strategy)
    lines = (*_store_lines(load, prices), last_send(load, prices))
    if hops:
        polling = idle_polling(load, prices, pollers=RECEIVERS)
        lines = (hop_requests(load, hops, prices), *lines, polling)
    return Bill(strategy=strategy, lines=(*lines, _looks(load, prices)))


def _store_lines(load: Workload, prices: Prices) -> tuple[Line, ...]:
    """Messages that share no request are apart here, too: each is an object, and released by itself."""
    together = load.batch == MAX_BATCH_ENTRIES
    written = -(-load.messages // (GROUP if together else load.batch))
    releases = -(-load.messages // (RELEASED if together else load.batch))
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    stored = load.messages * (load.message_bytes + LINE_BYTES)
    return (
        Line(what="S3 PUT requests (groups)", quantity=written, unit_price=prices.s3_put),
        Line(
            what="S3 PUT and LIST requests (split, merge, lease, checkpoint)",
            quantity=max(Fraction(2 * releases), load.messages * WRITES_PER_MESSAGE),
            unit_price=prices.s3_put,
        ),
        Line(
            what="S3 GET requests",
            quantity=max(Fraction(2 * releases), load.messages * READS_PER_MESSAGE),
            unit_price=prices.s3_get,
        ),
        Line(
            what="S3 storage, GB-months",
            quantity=Fraction(stored, _GB) * months,
            unit_price=prices.s3_gb_month,
        ),
    )


def _looks(load: Workload, prices: Prices) -> Line:
    return Line(
        what=f"S3 LIST requests (dispatcher, every {LOOK_SECONDS} s)",
        quantity=load.delay_seconds // LOOK_SECONDS,
        unit_price=prices.s3_put,
        fixed=True,
    )


AMENDMENT_READS: Final = 2
"""The delay consumer asks before it decides, and again once it has parked, whether there are amendments:
for a batch of copies, one read each time, where none was left in the last two weeks. Where some were, it
reads each message's."""

IDLE_READ_UNITS: Final = 19
"""What a dispatcher function that finds nothing due reads of a store of eight shards: their leases, twice;
near and far messages of each, twice; the hours. ``benchmarks/cost.py`` meters it."""

STEP_FUNCTIONS_TRANSITIONS: Final = 2
"""The least: a Wait state and a task that sends the message."""

STEP_FUNCTIONS_MAX_SECONDS: Final = 365 * 24 * 3600
"""Longest standard execution. Source: Step Functions quotas."""

SEED_OPERATIONS_PER_CYCLE: Final = 2
"""NServiceBus's documentation counts dequeue and requeue."""


def documented_formula(load: Workload, prices: Prices) -> Bill:
    """NServiceBus's documentation: two FIFO operations per whole cycle of 900 s, nothing else."""
    cycles = load.delay_seconds // MAX_MESSAGE_TIMER_SECONDS if load.hops else 0
    operations = load.messages * cycles * SEED_OPERATIONS_PER_CYCLE
    line = Line(
        what="SQS FIFO requests (2 a cycle)",
        quantity=operations,
        unit_price=prices.sqs_fifo_request,
    )
    return Bill(strategy="formula", lines=(line,))


def relay(load: Workload, prices: Prices) -> Bill:
    """Hops through the delay queue by the Lambda function: send, receive and delete for each."""
    if load.hops == 0:
        return _direct("relay", load, prices)
    return Bill(
        strategy="relay",
        lines=(
            *hop_lines(load, load.hops, prices),
            last_send(load, prices),
            idle_polling(load, prices),
        ),
    )


def parked(load: Workload, prices: Prices) -> Bill:
    """One hop, then a DynamoDB store until the dispatcher function sends it."""
    return _stored("parked", load, prices, hops=1)


def stored_by_sender(load: Workload, prices: Prices) -> Bill:
    """Put into the DynamoDB store by the sender itself: no delay queue at all."""
    return _stored("stored", load, prices, hops=0)


def eventbridge_scheduler(load: Workload, prices: Prices) -> Bill:
    """One one-time schedule per message, its target the queue."""
    if load.message_bytes > SCHEDULE_BYTES:
        return _no_schedule("eventbridge-scheduler", load.message_bytes, "send a pointer")
    line = _invocations(load, prices)
    alone = Workload(
        delay_seconds=0, messages=load.messages, message_bytes=load.message_bytes, batch=1
    )
    return Bill(strategy="eventbridge-scheduler", lines=(line, last_send(alone, prices)))


def scheduled(load: Workload, prices: Prices) -> Bill:
    """One hop, then a schedule, which fires into the delay queue: the last hop makes it exact."""
    return _scheduled("scheduled", load, prices, hops=2)


def scheduled_by_sender(load: Workload, prices: Prices) -> Bill:
    """Scheduled by the sender itself; the delay queue sees the message once its schedule has fired."""
    return _scheduled("scheduled-by-sender", load, prices, hops=1)


def _no_schedule(strategy: str, size: int, remedy: str) -> Bill:
    return Bill(
        strategy=strategy,
        impossible=f"a schedule holds {SCHEDULE_BYTES} bytes, this one has {size}; {remedy}",
    )


def _scheduled(strategy: str, load: Workload, prices: Prices, *, hops: int) -> Bill:
    parks = load.parks(after_hops=hops - 1)
    if not parks or load.delay_seconds < soonest_seconds(load.hop_seconds):
        return replace(relay(load, prices), strategy=strategy)
    size = load.message_bytes + SCHEDULE_OVERHEAD_BYTES
    if size > SCHEDULE_BYTES:
        return _no_schedule(strategy, size, "such messages would hop: use an S3 store")
    alone = replace(load, batch=1)
    lines = (
        _invocations(load, prices),
        Line(
            what="SQS FIFO requests (sent by the schedule, one by one)",
            quantity=alone.billed_requests,
            unit_price=prices.sqs_fifo_request,
        ),
        Line(
            what="SQS FIFO requests (received and deleted after it)",
            quantity=load.billed_requests + load.requests,
            unit_price=prices.sqs_fifo_request,
        ),
        *function_lines("delay consumer, after the schedule", load.requests, prices),
        *hop_lines(load, hops - 1, prices),
        last_send(load, prices),
        idle_polling(load, prices),
    )
    return Bill(strategy=strategy, lines=tuple(line for line in lines if line.quantity))


def step_functions(load: Workload, prices: Prices) -> Bill:
    """One standard execution per message: wait, then send to the queue."""
    if load.delay_seconds >= STEP_FUNCTIONS_MAX_SECONDS:
        return Bill(
            strategy="step-functions",
            impossible=f"an execution ends after {STEP_FUNCTIONS_MAX_SECONDS} s (one year), the "
            "send included; use a shorter delay",
        )
    line = Line(
        what=f"Step Functions transitions ({STEP_FUNCTIONS_TRANSITIONS} a message)",
        quantity=load.messages * STEP_FUNCTIONS_TRANSITIONS,
        unit_price=prices.step_functions_transition,
    )
    alone = Workload(
        delay_seconds=0, messages=load.messages, message_bytes=load.message_bytes, batch=1
    )
    return Bill(strategy="step-functions", lines=(line, last_send(alone, prices)))


NAMES: Final = {
    "formula": "NServiceBus's documented formula",
    "relay": "hops",
    "parked": "DynamoDB, parked by the delay consumer",
    "stored": "DynamoDB, parked by the sender",
    "parked-in-s3": "S3, parked by a worker",
    "parked-in-s3-by-functions": "S3, parked by functions",
    "stored-in-s3": "S3, parked by the sender",
    "stored-in-s3-by-id": "S3, parked by the sender, with look-ups",
    "scheduled": "EventBridge Scheduler, parked by the delay consumer",
    "scheduled-by-sender": "EventBridge Scheduler, parked by the sender",
    "eventbridge-scheduler": "EventBridge Scheduler alone",
    "step-functions": "Step Functions",
}
"""Strategies in words."""

STRATEGIES: Final[Sequence[Callable[[Workload, Prices], Bill]]] = (
    documented_formula,
    relay,
    parked,
    stored_by_sender,
    parked_in_s3,
    stored_in_s3,
    scheduled,
    scheduled_by_sender,
    eventbridge_scheduler,
    step_functions,
)


def bills(load: Workload, prices: Prices) -> list[Bill]:
    """The bill of every strategy."""
    return [strategy(load, prices) for strategy in STRATEGIES]


def _direct(strategy: str, load: Workload, prices: Prices) -> Bill:
    """A message timer holds it: one send, whatever the strategy."""
    return Bill(strategy=strategy, lines=(last_send(load, prices),))


def _stored(strategy: str, load: Workload, prices: Prices, *, hops: int) -> Bill:
    if not load.parks(after_hops=hops):
        lines = relay(load, prices).lines
        idle = _idle_dispatcher(load, prices) if hops and load.hops else ()
        return Bill(strategy=strategy, lines=(*lines, *idle))
    if item_bytes(load) > MAX_DYNAMODB_ITEM_BYTES:
        return Bill(
            strategy=strategy,
            impossible=f"a DynamoDB item holds {MAX_DYNAMODB_ITEM_BYTES} bytes, this one has "
            f"{item_bytes(load)}; such messages would hop: use an S3 or a PostgreSQL store",
        )
    lines = (
        *store_lines(load, prices),
        last_send(load, prices),
        dispatcher_line(load, prices),
    )
    if hops:
        amendments = Line(
            what="DynamoDB read units (whether any message was cancelled or moved)",
            quantity=load.requests * AMENDMENT_READS,
            unit_price=_read_unit(load, prices),
        )
        lines = (*hop_lines(load, hops, prices), amendments, *lines, idle_polling(load, prices))
    return Bill(strategy=strategy, lines=(*lines, *_idle_dispatcher(load, prices)))


def _read_unit(load: Workload, prices: Prices) -> Fraction:
    return prices.dynamodb_ia_read_unit if load.infrequent_access else prices.dynamodb_read_unit


def _invocations(load: Workload, prices: Prices) -> Line:
    return Line(
        what="EventBridge Scheduler invocations",
        quantity=load.messages,
        unit_price=prices.eventbridge_scheduler_invocation,
    )


def _idle_dispatcher(load: Workload, prices: Prices) -> tuple[Line, ...]:
    runs = load.delay_seconds // SCHEDULE_SECONDS
    reads = Line(
        what=f"DynamoDB read units (dispatcher, every {SCHEDULE_SECONDS} s)",
        quantity=runs * IDLE_READ_UNITS,
        unit_price=_read_unit(load, prices),
        fixed=True,
    )
    return (reads, *schedule_lines(load, prices))
