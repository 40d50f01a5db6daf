"""Ways to delay messages, each with its bill, and which of them to deploy.

Every bill ends with the message in the destination queue. What its receiver pays is the same for
all and left out, as are free tiers, volume discounts and data transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Final

from sqsdelay import limits
from sqsdelay.core.delay import SOONEST_SECONDS
from sqsdelay.cost import places
from sqsdelay.cost.places import MONTH_SECONDS, Used, last_send
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.workload import LAMBDA_POLLERS, TOGETHER, Bill, Line, Workload
from sqsdelay.errors import ConfigurationError, InvalidSetting

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

WATCHED: Final = {
    "no store": (8, 5),
    "-c store=scheduler": (8, 9),
    "-c store=dynamodb": (12, 8),
    "-c store=s3": (13, 9),
}
"""Custom metrics of the functions, as if each was told every hour, and alarms: of an endpoint with a standard
queue. There is a dashboard, too."""


def _polled(load: Workload, pollers: int) -> Used:
    """Long polls of the delay queue, as if it were empty."""
    polls = pollers * (load.delay_seconds // limits.MAX_RECEIVE_WAIT_SECONDS)
    return {f"SQS FIFO requests (idle long polling, {pollers} pollers)": polls}


def _watched(load: Workload, deploy: str) -> Used:
    months = Fraction(load.delay_seconds, MONTH_SECONDS)
    numbers = dict(zip(("metrics", "alarms", "dashboard"), (*WATCHED[deploy], 1), strict=True))
    return {f"CloudWatch {what}, months": months * number for what, number in numbers.items()}


def _eventbridge(load: Workload) -> Used | str:
    if load.message_bytes > places.SCHEDULE_BYTES:
        return places.no_schedule(load.message_bytes, "send a pointer")
    return {"EventBridge Scheduler invocations": load.messages, **last_send(places.alone(load))}


STEP_FUNCTIONS_TRANSITIONS: Final = 2
"""The least: a Wait state and a task that sends the message."""

STEP_FUNCTIONS_MAX_SECONDS: Final = 365 * 86_400
"""Longest standard execution. Source: Step Functions quotas."""


def _step_functions(load: Workload) -> Used | str:
    if load.delay_seconds >= STEP_FUNCTIONS_MAX_SECONDS:
        return (
            f"an execution ends after {STEP_FUNCTIONS_MAX_SECONDS} s (one year), the send included; "
            "use a shorter delay"
        )
    what = f"Step Functions transitions ({STEP_FUNCTIONS_TRANSITIONS} a message)"
    return {what: load.messages * STEP_FUNCTIONS_TRANSITIONS, **last_send(places.alone(load))}


SEED_OPERATIONS_PER_CYCLE: Final = 2
"""NServiceBus's documentation counts dequeue and requeue."""


def _formula(load: Workload) -> Used:
    cycles = load.delay_seconds // limits.MAX_MESSAGE_TIMER_SECONDS if load.hops else 0
    operations = load.messages * cycles * SEED_OPERATIONS_PER_CYCLE
    return {"SQS FIFO requests (2 a cycle)": operations}


def documented_formula(load: Workload, prices: Prices) -> Bill:
    """NServiceBus's documentation: two FIFO operations per whole cycle of 900 s, nothing else."""
    return bill("formula", load, prices)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to delay.

    Args:
        name: in words.
        stored: of one that parks, what its place takes, after so many hops; or why it cannot be.
        runs: what runs meanwhile, besides the polls of the delay queue.
        whole: of one that is not sqsdelay's, all of it; or why it cannot be.
        hops: before it is parked.
        deploy: what ``cdk deploy`` is told for it, None where it is not deployed.
        functions: whether functions move what hops, or a worker.
        by_sender: whether the sender parks; then it is not recommended, for it is not all in the deployment.
    """

    name: str
    stored: Callable[[Workload, int], Used | str] | None = None
    runs: Callable[[Workload], Used] | None = None
    whole: Callable[[Workload], Used | str] | None = None
    hops: int = 0
    deploy: str | None = None
    functions: bool = True
    by_sender: bool = False

    def made(self, load: Workload) -> tuple[Used | str, Used]:
        """What messages use, or why it cannot be; and what runs meanwhile."""
        if self.whole is not None:
            return self.whole(load), {}
        sent = last_send(load.billed_requests)
        if load.hops == 0:
            return sent, {}
        hops, used = load.hops, sent
        if self.stored is not None and self._parks(load):
            hops, stored = self.hops, self.stored(load, self.hops)
            if isinstance(stored, str):
                return stored, {}
            used = stored
        return {**places.hopped(load, hops, functions=self.functions), **used}, {
            **_polled(load, LAMBDA_POLLERS if self.functions else RECEIVERS),
            **(self.runs(load) if self.runs else {}),
            **(_watched(load, self.deploy) if self.deploy else {}),
        }

    def _parks(self, load: Workload) -> bool:
        left = load.delay_seconds - self.hops * load.hop_seconds
        if self.stored is places.in_a_schedule and left < SOONEST_SECONDS:
            return False
        return load.parks(after_hops=self.hops)


_WITH_DYNAMODB, _WITH_S3, _WITH_SCHEDULER = (
    f"-c store={s}" for s in ("dynamodb", "s3", "scheduler")
)

OF_STORE: Final = {
    "dynamodb": "stored",
    "s3": "stored-in-s3",
    "scheduler": "scheduled-by-sender",
}
"""The strategy of what waits in a store that is paid for by the message, by its URL's scheme."""

STRATEGIES: Final[Mapping[str, Strategy]] = {
    "formula": Strategy("NServiceBus's documented formula", whole=_formula),
    "relay": Strategy("hops", deploy="no store"),
    "parked": Strategy(
        "DynamoDB, parked by the delay consumer",
        places.in_dynamodb,
        places.dynamodb_runs,
        hops=1,
        deploy=_WITH_DYNAMODB,
    ),
    "stored": Strategy(
        "DynamoDB, parked by the sender",
        places.in_dynamodb,
        places.dynamodb_runs,
        deploy=_WITH_DYNAMODB,
        by_sender=True,
    ),
    "parked-in-s3": Strategy(
        "S3, parked by a worker", places.in_s3, places.s3_runs, hops=1, functions=False
    ),
    "parked-in-s3-by-functions": Strategy(
        "S3, parked by functions",
        places.in_s3_by_functions,
        places.s3_function_runs,
        hops=1,
        deploy=_WITH_S3,
    ),
    "stored-in-s3": Strategy("S3, parked by the sender", places.in_s3, places.s3_runs),
    "scheduled": Strategy(
        "EventBridge Scheduler, parked by the delay consumer",
        places.in_a_schedule,
        places.schedule_runs,
        hops=1,
        deploy=_WITH_SCHEDULER,
    ),
    "scheduled-by-sender": Strategy(
        "EventBridge Scheduler, parked by the sender",
        places.in_a_schedule,
        places.schedule_runs,
        deploy=_WITH_SCHEDULER,
        by_sender=True,
    ),
    "eventbridge-scheduler": Strategy("EventBridge Scheduler alone", whole=_eventbridge),
    "step-functions": Strategy("Step Functions", whole=_step_functions),
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
    used, meanwhile = strategy.made(load)
    if isinstance(used, str):
        return Bill(strategy=code, name=strategy.name, impossible=used)
    lines = (
        *_lines(used, load, prices),
        *_lines(meanwhile, load, prices, fixed=True),
    )
    return Bill(strategy=code, name=strategy.name, lines=lines)


def bills(load: Workload, prices: Prices) -> list[Bill]:
    """The bill of every strategy."""
    return [bill(code, load, prices) for code in STRATEGIES]


_HOP: Final = limits.DEFAULT_HOP_SECONDS
_FULL_BATCHES: Final = lcm(*range(1, limits.MAX_BATCH_ENTRIES + 1), TOGETHER)
"""So many messages fill batches of any size: none is charged for a last batch with room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A strategy, and how many messages share a request.

    With ``park_after_seconds`` the delay consumer parks, at the first hop, a message that has more
    than that remaining; others hop on. With ``stored`` the sender puts it into a store at once, with
    ``own_ids`` one that looks them up.
    """

    name: str
    strategy: str
    batch: int
    park_after_seconds: int | None = None
    stored: str | None = None
    own_ids: bool = False

    @property
    def parks_above_seconds(self) -> int | None:
        """The delays above which messages are parked."""
        after = self.park_after_seconds
        if after is None:
            return None
        return max(_HOP, after + (0 if self.stored else _HOP))

    def strategy_of(self, delay_seconds: int) -> str:
        """What becomes of a message."""
        above = self.parks_above_seconds
        parks = above is not None and delay_seconds > above
        return (self.stored or "parked") if parks else self.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A message's cost: a base, so much for each hop, and so much for each second of its delay."""

    base: Fraction
    hop: Fraction
    second: Fraction


def ways(park_after_seconds: Sequence[int]) -> list[Way]:
    """Relaying one by one and in full batches, parking after each of these, and AWS's scheduler.

    Raises:
        ConfigurationError: a negative number of seconds.
    """
    if below := [seconds for seconds in park_after_seconds if seconds < 0]:
        raise InvalidSetting("use 0 or more", park_after_seconds=below[0])
    full = limits.MAX_BATCH_ENTRIES
    parking = [
        Way(
            name=f"DynamoDB, parked after {seconds / 3600:g} h",
            strategy="relay",
            batch=full,
            park_after_seconds=seconds,
        )
        for seconds in sorted(set(park_after_seconds))
    ]
    return [
        Way(name="hops, one by one", strategy="relay", batch=1),
        Way(name="hops, in tens", strategy="relay", batch=full),
        *parking,
        Way(name="EventBridge Scheduler alone", strategy="eventbridge-scheduler", batch=1),
    ]


def stored_in_s3_at_once(park_after_seconds: int, *, lookup: bool = False) -> Way:
    """Put into an S3 store by the sender, where more than that remains; else relayed in full batches."""
    return Way(
        name=f"S3, parked by the sender after {park_after_seconds / 3600:g} h",
        strategy="relay",
        batch=limits.MAX_BATCH_ENTRIES,
        park_after_seconds=park_after_seconds,
        stored="stored-in-s3",
        own_ids=lookup,
    )


@lru_cache(maxsize=100_000)
def rate(
    strategy: str,
    message_bytes: int,
    batch: int,
    prices: Prices,
    *,
    direct: bool,
    own_ids: bool = False,
) -> Rate | None:
    """What a message of this size costs; None if it is too large for the strategy.

    It leaves out what runs however few messages there are. ``direct``: delays that one message
    timer holds.

    Raises:
        ConfigurationError: a value out of range.
    """

    def each(delay_seconds: int) -> Fraction | None:
        messages = _FULL_BATCHES if batch > 1 else 1
        load = Workload(
            delay_seconds=delay_seconds,
            messages=messages,
            message_bytes=message_bytes,
            batch=batch,
            park_after_seconds=0,
            own_ids=own_ids,
        )
        paid = bill(strategy, load, prices)
        return None if paid.impossible else paid.for_messages / messages

    if direct:
        base = each(_HOP)
        return None if base is None else Rate(base=base, hop=Fraction(0), second=Fraction(0))
    # A bill grows evenly with hops and with seconds: three of them tell how.
    one_hop, longer, two_hops = each(_HOP + 1), each(2 * _HOP), each(3 * _HOP)
    if one_hop is None or longer is None or two_hops is None:
        return None
    second = (longer - one_hop) / (_HOP - 1)
    hop = two_hops - longer - _HOP * second
    return Rate(base=longer - hop - 2 * _HOP * second, hop=hop, second=second)


_SEARCH_HOPS = 10_000


def break_even_seconds(
    prices: Prices,
    *,
    message_bytes: int = 1024,
    batch: int = limits.MAX_BATCH_ENTRIES,
    hop_seconds: int = limits.DEFAULT_HOP_SECONDS,
) -> int:
    """The shortest remaining delay, in whole hops, at which further hops cost more than a store.

    Compared is what still grows with the message: on one side its hops (requests and Lambda), on
    the other the DynamoDB store's writes, reads and storage and the dispatcher. Idle polling and
    schedules run anyway. The default ``batch`` of 10 takes hops at their cheapest, so that parking
    from there on never costs more.

    Raises:
        ConfigurationError: a value out of range, or prices at which hops are always cheaper.
    """
    load = Workload(
        delay_seconds=0,
        messages=TOGETHER,
        message_bytes=message_bytes,
        batch=batch,
        hop_seconds=hop_seconds,
        park_after_seconds=0,
    )
    for hops in range(1, _SEARCH_HOPS):
        remaining = replace(load, delay_seconds=(hops + 1) * hop_seconds)
        stored, hopped = (bill(code, remaining, prices) for code in ("stored", "relay"))
        if stored.impossible is None and stored.for_messages < hopped.for_messages:
            return remaining.delay_seconds
    raise ConfigurationError(
        f"at these prices a store costs more than {_SEARCH_HOPS} hops of {hop_seconds} s; do not park"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The cheapest way to deploy.

    Args:
        deploy: what to tell ``cdk deploy``.
        bill: what it costs.
        others: the other ways that can hold the messages, the cheaper first.
    """

    deploy: str
    bill: Bill
    others: tuple[tuple[str, Bill], ...]


def recommend(load: Workload, prices: Prices) -> Recommendation:
    """Of what `cdk deploy` makes, what costs the least; of equal ones what deploys the least."""
    found = [
        (each.deploy, bill(code, load, prices))
        for code, each in STRATEGIES.items()
        if each.deploy and not each.by_sender
    ]
    possible = [(deploy, paid) for deploy, paid in found if paid.impossible is None]
    (deploy, best), *others = sorted(possible, key=lambda each: each[1].total)
    return Recommendation(deploy=deploy, bill=best, others=tuple(others))
