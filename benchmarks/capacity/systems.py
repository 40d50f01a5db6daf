"""The systems that are simulated: consumers and dispatchers, built from measured costs and assumptions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from benchmarks.capacity import relay_simulation as relay
from benchmarks.capacity import store_simulation as store
from benchmarks.capacity.figures import (
    CHECKED_MESSAGES,
    CHECKED_RECEIVERS,
    CHECKED_RELEASES,
    DEPLOYED,
    DYNAMODB_SECONDS,
    FIFO_CALLS,
    FIFO_CALLS_ELSEWHERE,
    FULL_PROCESSOR_MB,
    INVOKE_SECONDS,
    MOST_CONCURRENCY,
    PARTITION_READS,
    PLAIN_FIFO_CALLS,
    POSTGRES_SECONDS,
    READ_UNITS,
    S3_SECONDS,
    S3_WRITES,
    SQS_SECONDS,
    TABLE_READS,
    Cost,
    Measured,
)
from benchmarks.capacity.relay_simulation import Consumer
from benchmarks.capacity.store_simulation import Dispatcher

ON_TIME_SECONDS: Final = 3.0
"""Latest that still counts as on time: a second for rounding up, and two for a simulated cohort's size."""

S3_ANSWERS: Final = 5
"""Of S3 in a claim, one after the other: listing, an object (in one claim of five), its lease, whether it
is still there, the checkpoint."""

_OVERLOAD: Final = 2
_BISECTIONS: Final = 7


@dataclass(frozen=True, kw_only=True)
class RelayCapacity:
    """What a consumer can do, in messages."""

    throughput: float
    pending: int
    due_spread: int
    due_together: int
    saturates: str
    lost_above: int


class Systems:
    """All that is compared, on these measurements."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured

    @cached_property
    def deployed(self) -> Consumer:
        """The function as ``cdk deploy`` sets it up."""
        return self._function(
            f"function, {DEPLOYED.max_concurrency} at once (as deployed)",
            lanes=DEPLOYED.max_concurrency,
            calls=FIFO_CALLS_ELSEWHERE.value,
        )

    @cached_property
    def consumers(self) -> list[Consumer]:
        """Those that relay."""
        most = int(MOST_CONCURRENCY.value)
        return [
            self.worker(),
            self.deployed,
            self._function("function, 100 at once", lanes=100, calls=FIFO_CALLS_ELSEWHERE.value),
            self._function(
                f"function, {most:,} at once, without high throughput",
                lanes=most,
                calls=PLAIN_FIFO_CALLS.value,
            ),
            self._function(
                f"function, {most:,} at once", lanes=most, calls=FIFO_CALLS_ELSEWHERE.value
            ),
            self._function(
                f"function, {most:,} at once, Ireland", lanes=most, calls=FIFO_CALLS.value
            ),
        ]

    def worker(
        self, answer_seconds: float = SQS_SECONDS.value, *, receivers: int = DEPLOYED.receivers
    ) -> Consumer:
        """One process of ``sqsdelay consume`` with a backlog: its receivers share one processor."""
        cpu = self.measured.costs["worker"].cpu_of(DEPLOYED.batch)
        return Consumer(
            name="worker (default)",
            lanes=receivers,
            batch_seconds=3 * answer_seconds,
            shared_cpu_seconds=cpu,
            calls_per_second=FIFO_CALLS_ELSEWHERE.value,
        )

    def _function(self, name: str, *, lanes: int, calls: float) -> Consumer:
        cost = self.measured.costs["function"]
        return Consumer(
            name=name, lanes=lanes, batch_seconds=_relaying(cost), calls_per_second=calls
        )

    @property
    def parked_a_second(self) -> float:
        """What the deployed function parks: it reads amendments twice and puts ten items side by side."""
        cost = self.measured.costs["function, parking"]
        seconds = _relaying(cost) - SQS_SECONDS.value + 3 * DYNAMODB_SECONDS.value
        return DEPLOYED.max_concurrency * DEPLOYED.batch / seconds

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher function, started every minute, on DynamoDB."""
        return self.dispatcher_function("as deployed", runs=DEPLOYED.dispatcher_runs)

    @cached_property
    def dispatchers(self) -> list[Dispatcher]:
        """Those on DynamoDB: with more runs at once, which take a longer timeout."""
        return [
            self.dispatcher,
            self.dispatcher_function("6 runs at once", runs=6),
            self.dispatcher_function("15 runs at once, 15 shards or more", runs=15, shards=15),
        ]

    @cached_property
    def all_dispatchers(self) -> list[Dispatcher]:
        """Those on S3 and PostgreSQL, too."""
        return [*self.dispatchers, self.s3_dispatcher, self.dispatcher_worker()]

    @cached_property
    def s3_dispatcher(self) -> Dispatcher:
        """The dispatcher function as deployed, on S3: what it asks in a claim is asked one after the
        other."""
        requests = self.measured.costs["dispatcher function on S3"].requests
        writes = requests["PutObject"] / 1000
        return self._dispatcher_function(
            "function on S3 (as deployed)",
            "dispatcher function on S3",
            ("answers of S3", S3_ANSWERS * S3_SECONDS.value),
            runs=DEPLOYED.dispatcher_runs,
            releases_per_second=S3_WRITES.value / writes,
        )

    def dispatcher_function(
        self, name: str, *, runs: int, shards: int = DEPLOYED.shards
    ) -> Dispatcher:
        """So many runs at once on DynamoDB, which share out the shards."""
        return self._dispatcher_function(
            f"function on DynamoDB ({name})",
            "dispatcher function",
            # Leases, what is due, lease, messages, lease.
            ("answers of DynamoDB", 5 * DYNAMODB_SECONDS.value),
            runs=runs,
            releases_per_second=min(self.store_limits(shards).values()),
        )

    def _dispatcher_function(
        self,
        name: str,
        measured: str,
        answers: tuple[str, float],
        *,
        runs: int,
        releases_per_second: float,
    ) -> Dispatcher:
        """So many runs at once. They are under way from the start here; in truth one more is started
        each minute."""
        claim = DEPLOYED.dispatcher_claim
        sends = math.ceil(claim / DEPLOYED.batch / DEPLOYED.dispatcher_sends)
        cpu = self.measured.costs[measured].cpu_of(claim)
        processor = DEPLOYED.dispatcher_memory_mb / FULL_PROCESSOR_MB.value
        every = DEPLOYED.dispatcher_every_seconds
        lost = DEPLOYED.dispatcher_kept_back_seconds + every * runs - self._timeout(runs)
        lanes = runs - lost / every
        store_name, store_seconds = answers
        return Dispatcher(
            name=name,
            claim=claim,
            parts={
                f"processor ({DEPLOYED.dispatcher_memory_mb} MB)": cpu / processor / lanes,
                store_name: store_seconds / lanes,
                "answers of SQS": sends * SQS_SECONDS.value / lanes,
            },
            every_seconds=every,
            run_seconds=every,
            releases_per_second=releases_per_second,
        )

    @staticmethod
    def _timeout(runs: int) -> float:
        """As the deployment reckons it."""
        every = DEPLOYED.dispatcher_every_seconds
        return (runs - DEPLOYED.dispatcher_runs) * every + DEPLOYED.dispatcher_timeout_seconds

    def store_limits(self, shards: int = DEPLOYED.shards) -> dict[str, float]:
        """Releases a second that DynamoDB's quotas allow."""
        return {
            "table reads": TABLE_READS.value / READ_UNITS.value,
            "partitions": shards * PARTITION_READS.value / READ_UNITS.value,
        }

    def dispatcher_worker(self, answer_seconds: float = SQS_SECONDS.value) -> Dispatcher:
        """One process of ``sqsdelay dispatch`` on PostgreSQL."""
        claim = DEPLOYED.worker_claim
        sends = math.ceil(claim / DEPLOYED.batch / DEPLOYED.outbox_batches)
        return Dispatcher(
            name="worker on PostgreSQL",
            claim=claim,
            parts={
                "processor": self.measured.costs["dispatcher worker"].cpu_of(claim),
                "answers of PostgreSQL": 3 * POSTGRES_SECONDS.value,
                "answers of SQS": sends * answer_seconds,
            },
        )

    def relay_capacity(self, consumer: Consumer) -> RelayCapacity:
        """Simulated: overloaded for what it moves a second, then what is due in a minute."""
        bound = consumer.lanes / consumer.batch_seconds * DEPLOYED.batch
        bound = min(bound, consumer.calls_per_second * DEPLOYED.batch)
        overloaded = relay.steady(consumer, round(_OVERLOAD * bound * DEPLOYED.hop_seconds))
        throughput = overloaded.throughput
        return RelayCapacity(
            throughput=throughput,
            pending=int(throughput * DEPLOYED.hop_seconds),
            due_spread=most(
                lambda due: relay.due_in_a_minute(consumer, due, together=False).late_share(1),
                round(throughput * DEPLOYED.hop_seconds),
            ),
            due_together=most(
                lambda due: relay.due_in_a_minute(consumer, due, together=True).late_share(1),
                round(throughput * 60),
            ),
            saturates=max(overloaded.utilisation, key=overloaded.utilisation.__getitem__),
            lost_above=int(throughput * DEPLOYED.retention_seconds),
        )


def most(late: Callable[[int], float], about: int) -> int:
    """The largest number that is still on time, within some percent, looked for from ``about`` on."""
    low, high = about // 2, max(10, about)
    if late(max(10, low)) > ON_TIME_SECONDS:
        low = 0
    while late(high) <= ON_TIME_SECONDS:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) // 2
        if late(max(10, middle)) <= ON_TIME_SECONDS:
            low = middle
        else:
            high = middle
    return low


def _relaying(cost: Cost) -> float:
    """A batch in the function: receive, invoke, send, delete; its share of a processor is small."""
    processor = DEPLOYED.consumer_memory_mb / FULL_PROCESSOR_MB.value
    return 3 * SQS_SECONDS.value + INVOKE_SECONDS.value + cost.cpu_of(DEPLOYED.batch) / processor


def checked(systems: Systems, answers: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """What the simulation says of the checks: seconds until half, and until all are through.

    Args:
        answers: how long SQS takes to answer, seconds, for each check.
    """
    worker = systems.worker(answers["worker"], receivers=CHECKED_RECEIVERS)
    relayed = relay.drained(worker, CHECKED_MESSAGES)
    dispatcher = systems.dispatcher_worker(answers["dispatcher worker"])
    released = store.drained(dispatcher, CHECKED_RELEASES)
    return {
        "worker": (relayed[len(relayed) // 2], relayed[-1]),
        "dispatcher worker": (released[len(released) // 2], released[-1]),
    }
