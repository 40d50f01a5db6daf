"""`DelayConsumer`: the relay as a worker process, long-polling the queues of one endpoint's delays."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed, wait
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from sqsdelay import errors
from sqsdelay.core import limits
from sqsdelay.core.delay import Clock, SystemClock, check_range
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import one_line
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, Stores, check, parking_settings
from sqsdelay.relaying.gathering import Intake, Parker
from sqsdelay.relaying.outcomes import DEFAULT_MAX_RECEIVES, Outcome, RelaySettings
from sqsdelay.relaying.relay import DueRelay, Relay
from sqsdelay.sqs import receivers as loops
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.curl import request_by_curl
from sqsdelay.sqs.endpoints import checked_relay, refuse, size_problems, waiting_problems
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.ledger.events import Ledger
    from sqsdelay.ports.queues import Queues, Tracing
    from sqsdelay.ports.stores import ParkingPlace

logger = logging.getLogger(__name__)

_FILES: Final = 8
"""File descriptors for each receiver: a connection of libcurl's takes three, and it has two or more."""
_FEW_FILES: Final = (
    "ulimit -n is %d, few for up to %d receivers with libcurl: requests fail without a file descriptor, and "
    "messages may arrive twice; raise it to %d, or give fewer --receivers"
)

_HELPERS: Final = 7
"""Threads that help to empty a parking queue with more than one round in it."""


class DelayConsumer:
    """Serves the delay queue of one endpoint, and a FIFO endpoint's due queue, until it is stopped.

    Args:
        endpoint: the destination queue's name, URL or ARN.
        client: a boto3 SQS client; made from the default session when left out. A client that you pass
            keeps its own time limits; a long poll needs a read limit above ``wait_seconds``.
        http: who makes the requests of a client that is left out: ``"botocore"``, or ``"curl"`` for half
            of the processor time (libcurl, by the extra ``curl``). Handlers of botocore's events from
            ``request-created`` on do not see requests that libcurl makes.
        hop_seconds: the shortest delivery delay the delay queue may have.
        receivers: receive loops side by side, for each queue. Left out, `run` finds the number itself: two
            while there is little to do, up to 32 while the delay queue has more and the processor has
            time, at most the client's connections.
        wait_seconds: long poll, 0 to 20.
        visibility_seconds: how long copies stay hidden if this consumer dies, 1 to 180; it
            extends that while it works on them.
        max_receives: receives after which a copy that SQS keeps refusing goes to the error queue.
        max_delay_seconds: messages due farther ahead go to the error queue.
        store: parks messages and holds amendments; without one neither is done.
        park_after_seconds: messages with more than this remaining are parked.
        on_outcomes: called after each batch, from the receivers' threads.
        ledger: where to record what became of copies; None records nothing.
        tracing: traces deliveries, e.g. `sqsdelay.opentelemetry.OpenTelemetryTracing`.
        clock: the local clock.

    Raises:
        InvalidEndpoint, ConfigurationError: a setting out of range.
    """

    def __init__(
        self,
        endpoint: str,
        client: SQSClient | None = None,
        *,
        http: Literal["botocore", "curl"] = "botocore",
        hop_seconds: int = limits.DEFAULT_HOP_SECONDS,
        receivers: int | None = None,
        wait_seconds: int = limits.MAX_RECEIVE_WAIT_SECONDS,
        visibility_seconds: int = limits.WORKER_VISIBILITY_SECONDS,
        max_receives: int = DEFAULT_MAX_RECEIVES,
        max_delay_seconds: int = limits.DEFAULT_MAX_DELAY_SECONDS,
        store: ParkingPlace | None = None,
        park_after_seconds: int = DEFAULT_PARK_AFTER_SECONDS,
        on_outcomes: Callable[[Sequence[Outcome]], None] | None = None,
        ledger: Ledger | None = None,
        tracing: Tracing | None = None,
        clock: Clock | None = None,
    ) -> None:
        if receivers is not None:
            check_range(1, receivers=receivers)
        check_range(0, limits.MAX_RECEIVE_WAIT_SECONDS, wait_seconds=wait_seconds)
        why = ": a copy that comes back later is no longer deduplicated against its first attempt"
        most = limits.DELAY_QUEUE_VISIBILITY_SECONDS
        check_range(1, most, why, visibility_seconds=visibility_seconds)
        self.endpoint = Endpoint.parse(endpoint)
        self._clock = clock or SystemClock()
        self._longest_wait = wait_seconds if client is None else limits.MAX_RECEIVE_WAIT_SECONDS
        self._most = receivers or loops.MOST_RECEIVERS
        if client is not None:
            connections = getattr(client.meta.config, "max_pool_connections", self._most)
            self._most = min(self._most, connections)
        self._queues = _queues(client, self._most, wait_seconds, self._clock, http)
        self._shared: Queues = self._queues
        self._visibility_seconds = visibility_seconds
        self._receivers = receivers
        self._wait_seconds = wait_seconds
        self._settings = RelaySettings(
            hop_seconds=hop_seconds,
            max_receives=max_receives,
            max_delay_seconds=max_delay_seconds,
            parking=parking_settings(store, park_after_seconds),
            ledger=ledger,
            tracing=tracing,
        )
        self._on_outcomes = on_outcomes
        self._serving: list[loops.Receivers] = []
        self._parker: Parker | None = None

    def start(self) -> None:
        """Check the queues and take the delay queue's actual delay as the hop; `run` and `poll` call it.

        Raises:
            ConfigurationError: the delay queue is unsuitable (its delay is shorter than the hop, its
                retention is too short, it has a redrive policy), or another endpoint shares it.
            QueueMissing, QueueUnavailable: a queue cannot be asked.
            StoreMissing: the store is not set up.
        """
        queues, parking = self._shared, self._settings.parking
        if parking is not None:
            # Find out now that the table is missing; an outage is waited for by hopping on.
            store = Stores(parking).of(self.endpoint.name)
            try:
                check(store)
            except errors.StoreUnavailable as error:
                logger.warning("messages hop on until the store can be used: %s", one_line(error))
            if store.fires:
                self._queues.url(self.endpoint.parking_queue)
                self._parker = Parker(self._queues, self.endpoint, self._settings)
        relays: list[Relay] = [checked_relay(queues, self.endpoint, self._settings)]
        if self.endpoint.fifo:
            due = DueRelay(queues, self.endpoint, self._settings)
            refuse(waiting_problems(due.source.name, queues.attributes(queues.url(due.source))))
            relays.append(due)
        self._serving = [
            loops.Receivers(
                intake=Intake(queues, relay, self._clock, seconds=self._visibility_seconds),
                wait_seconds=self._wait_seconds,
                number=self._receivers,
                most=self._most,
                told=self._told,
            )
            for relay in relays
        ]
        for queue in self.endpoint.queues:
            try:
                found = {queue: queues.attributes(queues.url(queue))}
            except errors.SqsDelayError as error:
                # The worker need not be allowed to ask, to do its work.
                logger.info("the limit of %s is not known: %s", queue.name, one_line(error))
            else:
                refuse(size_problems(self.endpoint, found))

    def poll(self, *, wait_seconds: int | None = None) -> list[Outcome]:
        """Receive one batch from each queue, relay it and settle it; an outcome per copy received.

        Args:
            wait_seconds: long poll of each queue, at most the consumer's own, which is the default.

        Raises:
            ConfigurationError, QueueMissing, QueueUnavailable
        """
        longest = self._wait_seconds if wait_seconds is None else wait_seconds
        if longest > self._longest_wait:
            raise errors.InvalidSetting(
                f"poll(wait_seconds={longest}) is longer than the wait_seconds={self._longest_wait} of "
                "this consumer; give DelayConsumer the longer one"
            )
        if not self._serving:
            self.start()
        outcomes = [o for each in self._parked(threading.Event()) for o in each]
        for intake in (each.intake for each in self._serving):
            outcomes += self._told(intake.settle(intake.receive(wait_seconds=longest)))
        return outcomes

    def _parked(
        self, stop: threading.Event, crowded: Callable[[], object] | None = None
    ) -> Iterator[list[Outcome]]:
        """Empty the parking queue, into which schedules fire; the rounds, none of which is kept."""
        if self._parker is not None:
            rounds = self._parker.rounds(more=lambda: not stop.is_set(), crowded=crowded)
            yield from map(self._told, rounds)

    def _park_until_stopped(self, stop: threading.Event) -> None:
        """Every five minutes: what became visible meanwhile shares its requests."""

        def park(*crowded: Callable[[], object]) -> None:
            deque(self._parked(stop, *crowded), maxlen=0)

        def park_with_help() -> None:
            helpers = list[Future[None]]()
            try:
                park(lambda: helpers.extend(loops.in_thread(park) for _ in range(_HELPERS)))
            finally:
                wait(helpers)
            for each in helpers:
                each.result()  # One thread tells of an outage, and tries again for all.

        while self._parker is not None and not stop.is_set():
            loops.retrying_until(stop)(park_with_help)
            stop.wait(limits.GATHERING_SECONDS)

    def _told(self, outcomes: list[Outcome]) -> list[Outcome]:
        if self._on_outcomes is not None and outcomes:
            self._on_outcomes(outcomes)
        return outcomes

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set; then finish the batches in hand and return.

        It waits for no long poll that has brought nothing, and at most 4 s for an answer. What SQS still
        hands out to it is released, or comes back after ``visibility_seconds`` if the process has ended by
        then. While SQS cannot be reached, at the start or later, it waits, up to 30 s between attempts.

        Raises:
            ConfigurationError, QueueMissing, StoreMissing: from `start`, before any receive.
        """
        if self._receivers != 1:
            self._shared = loops.SharedBatches(self._queues, lanes=self._most)
        patiently = loops.retrying_until(stop, only=errors.QueueUnavailable)
        starting = loops.in_thread(patiently, self.start)
        while not starting.done():
            if stop.wait(loops.STOP_LOOK_SECONDS):
                # Its calls end by themselves; a process need not wait for them.
                return
        starting.result()
        parking = loops.in_thread(self._park_until_stopped, stop)
        for ended in as_completed([loops.in_thread(each.run, stop) for each in self._serving]):
            ended.result()
        wait([parking], timeout=limits.STOP_SECONDS)


def _queues(
    client: SQSClient | None, receivers: int, wait_seconds: int, clock: Clock, http: str
) -> SqsQueues:
    if http not in ("botocore", "curl"):
        raise errors.InvalidSetting("use 'botocore' or 'curl'", http=http)
    if client is None:
        # What they pass on botocore has parsed, or core/ has made: it need not be checked once more.
        ours = partial(default_client, connections=2 * receivers, parameter_validation=False)
        clients = ours(), ours(wait_seconds=wait_seconds, attempts=limits.SHORT_CALL_ATTEMPTS)
        for each in clients if http == "curl" else ():
            if in_the_way := request_by_curl(each):
                why = f"cannot be used: {in_the_way}; or use 'botocore'"
                raise errors.ConfigurationError(why, http=http)
        logger.info("%s makes the requests", "libcurl" if http == "curl" else "botocore")
        if http == "curl":
            import resource  # Not on Windows, which has no pycurl either.

            files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            if 0 <= files < _FILES * receivers:
                logger.warning(_FEW_FILES, files, receivers, _FILES * receivers)
    elif http == "curl":
        raise errors.InvalidSetting("is for a client of sqsdelay's; leave client out", http=http)
    else:
        clients = client, client
    if hasattr(type(clients[0]), "large_payload_support"):
        raise errors.ConfigurationError(
            "AWS's Extended Client puts bodies in place of the pointers that a consumer relays; run it in a "
            "process that does not import sqs_extended_client"
        )
    return SqsQueues(clients[0], receiving=clients[1], clock=clock)
