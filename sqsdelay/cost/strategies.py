"""Ways to delay messages, each with its bill, and which of them to deploy.

Every bill ends with the message in the destination queue. What its receiver pays is the same for
all and left out, as are free tiers, volume discounts and data transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, lcm
from typing import Final

from sqsdelay.core import limits
from sqsdelay.core.schedule_input import SOONEST_SECONDS
from sqsdelay.cost import places
from sqsdelay.cost.places import MONTH_SECONDS, Used, last_send
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.workload import LAMBDA_POLLERS, TOGETHER, Bill, Line, Workload
from sqsdelay.errors import InvalidSetting

UNITS: Final = {
    "SQS FIFO": "sqs_fifo_request",
    "SQS standard": "sqs_standard_request",
    "Lambda requests": "lambda_request",
    "Lambda GB-seconds": "lambda_arm64_gb_second",
    "DynamoDB write units": "dynamodb_write_unit",
    "DynamoDB lease writes": "dynamodb_write_unit",
    "DynamoDB read units": "dynamodb_read_unit",
    "DynamoDB storage": "dynamodb_gb_month",
    "S3 PUT": "s3_put",
    "S3 LIST": "s3_put",
    "S3 GET": "s3_get",
    "S3 storage": "s3_gb_month",
    "Logs": "cloudwatch_logs_gb",
    "CloudWatch metrics": "cloudwatch_metric_month",
    "CloudWatch alarms": "cloudwatch_alarm_month",
    "CloudWatch dashboard": "cloudwatch_dashboard_month",
    "EventBridge Scheduler": "eventbridge_scheduler_invocation",
    "Step Functions": "step_functions_transition",
}


def _lines(used: Used, load: Workload, prices: Prices, *, fixed: bool = False) -> tuple[Line, ...]:
    """What is used, with its prices."""
    lines = []
    for what, quantity in used.items():
        unit = next(unit for start, unit in UNITS.items() if what.startswith(start))
        if load.infrequent_access:
            unit = unit.replace("dynamodb_", "dynamodb_ia_")
        if quantity or len(used) == 1:
            lines.append(Line(what, quantity, getattr(prices, unit), fixed=fixed))
    return tuple(lines)


RECEIVERS: Final = 2
"""Long polls of a worker."""
WATCHED: Final = {"": (8, 5), "scheduler": (8, 9), "dynamodb": (12, 8), "s3": (13, 9)}
"""Custom metrics of the functions, as if each was told every hour, and alarms: of an endpoint with a standard
queue. There is a dashboard, too."""


def _polls(load: Workload, pollers: int) -> int:
    """Long polls of a queue, as if it were empty."""
    return pollers * (load.delay_seconds // limits.MAX_RECEIVE_WAIT_SECONDS)


def _watched(load: Workload, store: str) -> Used:
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    numbers = dict(zip(("metrics", "alarms", "dashboard"), (*WATCHED[store], 1), strict=True))
    return {f"CloudWatch {what}, months": months * number for what, number in numbers.items()}


def _eventbridge(load: Workload, _: int) -> Used | str:
    if load.message_bytes > places.SCHEDULE_BYTES:
        return places.too_large(load.message_bytes, "send a pointer")
    return {"EventBridge Scheduler invocations": load.messages, **last_send(places.alone(load))}


def _step_functions(load: Workload, _: int) -> Used | str:
    """The least: a Wait state and a task that sends the message. Its limits: Step Functions quotas."""
    if load.message_bytes > places.SCHEDULE_BYTES:
        return places.too_large(load.message_bytes, "send a pointer", "an execution")
    if load.delay_seconds >= 31_536_000:
        return "an execution ends after 31536000 s (one year, send included); use a shorter delay"
    transitions = {"Step Functions transitions (2 a message)": 2 * load.messages}
    return {**transitions, **last_send(places.alone(load))}


def _formula(load: Workload, _: int) -> Used:
    """NServiceBus's documentation counts two FIFO operations, dequeue and requeue, a whole cycle of 900 s."""
    cycles = load.delay_seconds // limits.MAX_MESSAGE_TIMER_SECONDS if load.hops else 0
    return {"SQS FIFO requests (2 a cycle)": 2 * load.messages * cycles}


RELAYED_ON_TIME: Final = 1_100_000
DYNAMODB_ON_TIME: Final = 4_300_000
S3_ON_TIME: Final = 1_800_000
SCHEDULES_ON_TIME: Final = limits.DEFAULT_INVOCATIONS * limits.MAX_MESSAGE_TIMER_SECONDS
PARKED_A_SECOND: Final = 720
"""How many may be pending, or due together in such a store, and none is late; and what the delay consumer
parks. As deployed, in batches of ten of up to 64 KiB. Source: docs/capacity.md, "Answers"."""
_AHEAD: Final = limits.MAX_MESSAGE_TIMER_SECONDS
"""What is due is released so long before."""
_HOPS_A_SECOND: Final = Fraction(RELAYED_ON_TIME, _AHEAD)
_LOST: Final = (
    "messages would be lost: copies wait up to {days:,.1f} days in the delay queue, and SQS drops them "
    "after 14; send them more slowly, or have more functions run at once (docs/capacity.md)"
)
_GIVEN_UP: Final = (
    "messages would not arrive: the last would be {late:,.1f} h late, and after {most:,.0f} h this place "
    "gives them up; spread their due times (docs/capacity.md)"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where messages wait."""

    takes: Callable[[Workload, int], Used | str] | None
    """What messages take that are parked after so many hops; or why it cannot be."""
    runs: Callable[[Workload], Used] = lambda _: {}
    """What runs meanwhile, besides the polls of the delay queue."""
    on_time: int | None = None
    """How many messages may fall due together, and none is late."""
    finds: bool = True  # by an id of one's own
    schedules: bool = False  # each message is a schedule, of which there is a quota
    gives_up: int | None = None  # so many seconds after a message was due


_DYNAMODB: Final = Place(
    places.in_dynamodb,
    places.dynamodb_runs,
    DYNAMODB_ON_TIME,
    gives_up=limits.MAX_RETENTION_SECONDS,
)
_S3: Final = Place(places.in_s3, places.s3_runs, S3_ON_TIME)
_S3_BY_SENDER: Final = replace(_S3, runs=places.s3_function_runs)
_S3_BY_FUNCTIONS: Final = replace(_S3_BY_SENDER, takes=places.in_s3_by_functions, finds=False)
_SCHEDULER: Final = Place(
    places.in_a_schedule,
    places.schedule_runs,
    SCHEDULES_ON_TIME,
    schedules=True,
    gives_up=limits.SCHEDULE_RETRY_SECONDS,
)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to delay."""

    name: str
    place: Place
    hops: int = 0  # before they are parked; without any the sender parks
    store: str | None = None  # that `cdk deploy` is told for it; None where it is not deployed
    functions: bool = True  # they move what hops, or a worker does
    ours: bool = True  # if not, the place takes all there is

    @property
    def told(self) -> str:
        """What to tell ``cdk deploy``."""
        return f"-c store={self.store}" if self.store else "no store"

    def made(self, load: Workload) -> tuple[Used | str, Used]:
        """What messages use, or why it cannot be; and what runs meanwhile."""
        if not self.ours and self.place.takes:
            return self.place.takes(load, 0), {}
        hops, used = load.hops, last_send(load.billed_requests)
        if hops == 0:
            return used, {}
        if (waits := self._queued(load)[0] + load.hop_seconds) > limits.MAX_RETENTION_SECONDS:
            return _LOST.format(days=float(waits / 86_400)), {}
        if self.place.takes and self._parks(load):
            hops, taken = self.hops, self.place.takes(load, self.hops)
            if isinstance(taken, str):
                return taken, {}
            late, most = self._behind(load), self.place.gives_up
            if most is not None and late > most:
                return _GIVEN_UP.format(late=float(late / 3600), most=most / 3600), {}
            used = taken
        pollers = LAMBDA_POLLERS if self.functions else RECEIVERS
        polled = f"SQS FIFO requests (idle long polling, {pollers} pollers)"
        return {**places.hopped(load, hops, functions=self.functions), **used}, {
            polled: _polls(load, pollers),
            **self.place.runs(load),
            **({} if self.store is None else _watched(load, self.store)),
        }

    def _parks(self, load: Workload) -> bool:
        left = load.delay_seconds - self.hops * load.hop_seconds
        if self.place.takes is None or (self.place.schedules and left < SOONEST_SECONDS):
            return False
        return load.hops > 0 and left > load.park_after_seconds

    def _queued(self, load: Workload) -> tuple[Fraction, Fraction]:
        """How long the last copy waits in the delay queue besides its hop, and how many hop to the end, if
        all are sent evenly in one delay, and those of a release at once. What comes too near to be parked
        while it waits hops, too."""
        together, all_ = map(load.in_full_requests, (load.together, load.messages))
        if not self._parks(load):
            return all_ / _HOPS_A_SECOND, all_
        near = Fraction(load.delay_seconds - load.hop_seconds - load.park_after_seconds)
        waits = hopping = Fraction(0)
        for many, seconds in ((together, 0), (all_, load.delay_seconds)):
            parked = many / PARKED_A_SECOND - seconds
            if self.hops and self.functions and parked > 0:
                rest = max(Fraction(0), 1 - near / parked)
                longer = max(Fraction(0), rest * (many / _HOPS_A_SECOND - seconds))
                waits, hopping = max(waits, min(parked, near) + longer), max(hopping, rest * many)
        return waits, hopping

    def _behind(self, load: Workload) -> Fraction:
        """How late the place releases the last, seconds; less than 0 if it is on time."""
        together, all_ = map(load.in_full_requests, (load.together, load.messages))
        # Alone, the service has a minute.
        ahead, a_second = _AHEAD if self.ours else 60, Fraction(self.place.on_time or 0, _AHEAD)
        return max(together, all_ - load.delay_seconds * a_second) / a_second - ahead

    def late_seconds(self, load: Workload) -> int:
        """How late the last may be, if they are sent like this."""
        if self.place.on_time is None or (self.ours and load.hops == 0):
            return 0
        late = [self._queued(load)[1] / _HOPS_A_SECOND - _AHEAD] if self.ours else []
        if self._parks(load) or not self.ours:
            late.append(self._behind(load))
        else:
            # What was sent in the same minute meets at its first hop, with less time where that is its last.
            together = load.in_full_requests(load.together)
            late.append(together / _HOPS_A_SECOND - (load.delay_seconds - _AHEAD + 60))
        return max(0, ceil(max(late)))

    def warnings(self, load: Workload) -> Iterator[str]:
        """What one has to know of it."""
        if late := self.late_seconds(load):
            so = f"{late} s" if late < 3600 else f"{late / 3600:,.1f} h"
            yield f"the last message arrives {so} late"
        elif not self.ours and self.place.schedules:
            yield "each up to a minute late"
        if self.ours and load.delay_seconds > limits.DEFAULT_MAX_DELAY_SECONDS:
            yield "senders refuse more than ten years unless you raise max_delay_seconds"
        if self.ours and load.hops == 0:
            yield "SQS's own message timer holds them: no hop"
        elif self.ours and self.place.takes and not self._parks(load):
            yield "such a delay is too short to be parked: they hop"
        if load.own_ids and not self.place.finds:
            yield "messages with ids of your own cannot be found, to cancel or move them"
        elif load.own_ids and self.place.takes is places.in_s3:
            yield "to find ids of your own the store's URL ends in ?lookup=on"
        many = load.messages > limits.DEFAULT_SCHEDULES
        if self.place.schedules and many and (not self.ours or self._parks(load)):
            yield f"ask AWS for a higher quota of schedules than {limits.DEFAULT_SCHEDULES:,}"


OF_STORE: Final = {"dynamodb": "stored", "s3": "stored-in-s3", "scheduler": "scheduled-by-sender"}
"""The strategy of what waits in a store that is paid for by the message, by its URL's scheme."""
_BY_CONSUMER: Final = "parked by the delay consumer"
_ALONE: Final = Place(_eventbridge, on_time=SCHEDULES_ON_TIME, schedules=True)
STRATEGIES: Final[Mapping[str, Strategy]] = {
    "formula": Strategy("NServiceBus's documented formula", Place(_formula), ours=False),
    "relay": Strategy("hops", Place(None, on_time=RELAYED_ON_TIME, finds=False), store=""),
    "parked": Strategy(f"DynamoDB, {_BY_CONSUMER}", _DYNAMODB, 1, "dynamodb"),
    "stored": Strategy("DynamoDB, parked by the sender", _DYNAMODB, 0, "dynamodb"),
    "parked-in-s3": Strategy("S3, parked by a worker", _S3, 1, functions=False),
    "parked-in-s3-by-functions": Strategy("S3, parked by functions", _S3_BY_FUNCTIONS, 1, "s3"),
    "stored-in-s3": Strategy("S3, parked by the sender", _S3_BY_SENDER, 0, "s3"),
    "scheduled": Strategy(f"EventBridge Scheduler, {_BY_CONSUMER}", _SCHEDULER, 1, "scheduler"),
    "scheduled-by-sender": Strategy(
        "EventBridge Scheduler, parked by the sender", _SCHEDULER, 0, "scheduler"
    ),
    "eventbridge-scheduler": Strategy("EventBridge Scheduler alone", _ALONE, ours=False),
    "step-functions": Strategy("Step Functions", Place(_step_functions), ours=False),
}
"""By the code that JSON has."""


def bill(code: str, load: Workload, prices: Prices) -> Bill:
    """What one strategy costs; ConfigurationError of a code that is not known."""
    if code not in STRATEGIES:
        raise InvalidSetting(f"strategy {code!r} is not known; use {', '.join(STRATEGIES)}")
    strategy = STRATEGIES[code]
    used, meanwhile = strategy.made(load)
    if isinstance(used, str):
        return Bill(strategy=code, name=strategy.name, impossible=used)
    lines = (*_lines(used, load, prices), *_lines(meanwhile, load, prices, fixed=True))
    late, told = strategy.late_seconds(load), tuple(strategy.warnings(load))
    return Bill(strategy=code, name=strategy.name, lines=lines, late_seconds=late, warnings=told)


def due_queue(load: Workload, prices: Prices) -> Fraction:
    """What a FIFO destination adds to each way: its due queue, from which every message is sent on to it."""
    used = {
        "SQS standard requests": load.billed_receives + load.runs + _polls(load, LAMBDA_POLLERS),
        "SQS FIFO requests": load.billed_requests,
        **places.invoked("due queue", load.runs, limits.DELAY_CONSUMER_MEMORY_MB),
    }
    return sum((line.amount for line in _lines(used, load, prices)), Fraction(0))


def bills(load: Workload, prices: Prices) -> list[Bill]:
    """The bill of every strategy."""
    return [bill(code, load, prices) for code in STRATEGIES]


_HOP: Final = limits.DEFAULT_HOP_SECONDS
_FULL_BATCHES: Final = lcm(*range(1, limits.MAX_BATCH_ENTRIES + 1), TOGETHER)
"""So many messages fill batches of any size: none is charged for a last batch with room."""


@dataclass(frozen=True, slots=True)
class Way:
    """A strategy, and how many messages share a request; longer delays than these are ``stored``, with
    ``own_ids`` in a store that looks them up."""

    name: str
    strategy: str
    batch: int
    parks_above_seconds: int | None = None
    stored: str = "parked"
    own_ids: bool = False

    def strategy_of(self, delay_seconds: int) -> str:
        """What becomes of a message."""
        above = self.parks_above_seconds
        return self.strategy if above is None or delay_seconds <= above else self.stored


def ways(park_after_seconds: Sequence[int]) -> list[Way]:
    """Relaying one by one and in tens, parking at the first hop what has more than each of these left, and
    AWS's scheduler."""
    if below := [seconds for seconds in park_after_seconds if seconds < 0]:
        raise InvalidSetting("use 0 or more", park_after_seconds=below[0])
    tens, after = limits.MAX_BATCH_ENTRIES, sorted(set(park_after_seconds))
    return [
        Way("hops, one by one", "relay", 1),
        Way("hops, in tens", "relay", tens),
        *(Way(f"DynamoDB, parked after {s / 3600:g} h", "relay", tens, s + _HOP) for s in after),
        Way("EventBridge Scheduler alone", "eventbridge-scheduler", 1),
    ]


_FAR_HOPS: Final = 31 * 86_400 // _HOP
"""From there on, each hop and each second costs as much as the one before, in every place."""


@lru_cache(maxsize=100_000)
def rate(
    strategy: str, message_bytes: int, batch: int, prices: Prices, *, own_ids: bool = False
) -> tuple[Fraction, Fraction, Fraction] | None:
    """What a message of this size costs, without what runs anyway: a base, so much for each hop, and for each
    second of its delay. None if it is too large for the strategy."""
    messages, far = _FULL_BATCHES if batch > 1 else 1, _FAR_HOPS * _HOP
    load = Workload(
        delay_seconds=0,
        messages=messages,
        message_bytes=message_bytes,
        batch=batch,
        park_after_seconds=0,
        own_ids=own_ids,
    )
    after = (far + 1, far + _HOP, far + 2 * _HOP)
    paid = [bill(strategy, replace(load, delay_seconds=seconds), prices) for seconds in after]
    if any(each.impossible for each in paid):
        return None
    few, more, longer = (each.for_messages / messages for each in paid)
    second = (more - few) / (_HOP - 1)
    hop = longer - more - _HOP * second
    return few - _FAR_HOPS * hop - (far + 1) * second, hop, second


def recommend(load: Workload, prices: Prices) -> list[tuple[str, Bill]]:
    """Of what `cdk deploy` makes and loses nothing, what to tell it and its bill, a bill a store.

    A store's bill and the best of all: what finds messages by their ids; then what is on time, the sender's
    parking last; then what costs the least. Of what is late the best has the least product of sum and
    lateness. The other stores follow the best by their sums.
    """
    deployed = {code: way for code, way in STRATEGIES.items() if way.store is not None}

    def unfound(paid: Bill) -> bool:
        return load.own_ids and not deployed[paid.strategy].place.finds

    def rank(paid: Bill) -> tuple[bool, int, Fraction]:
        way, late = deployed[paid.strategy], paid.late_seconds
        order = 2 if late else int(way.place.takes is not None and not way.hops)
        return unfound(paid), order, paid.total * max(1, late)

    # What does not park so short a delay is hops, at a higher price.
    made = [code for code, way in deployed.items() if way.place.takes is None or way._parks(load)]
    possible = [b for b in (bill(code, load, prices) for code in made) if not b.impossible]
    stores: dict[str, Bill] = {}
    for paid in sorted(possible, key=rank):
        stores.setdefault(deployed[paid.strategy].told, paid)
    found = list(stores.items())
    return found[:1] + sorted(found[1:], key=lambda each: (unfound(each[1]), each[1].total))
