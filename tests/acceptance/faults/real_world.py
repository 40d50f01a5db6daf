"""A scenario in real time: a local SQS server, a proxy before each party, hops of one second."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from sqsdelay import DelaySender
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import QueueMissing
from sqsdelay.sqs import create_endpoint
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.testing import LocalAws
from tests.acceptance.faults.real_parties import (
    HOP_SECONDS,
    STALL_SECONDS,
    VISIBILITY_SECONDS,
    MortalWorker,
    Network,
    Work,
    client_of,
    function,
    worker,
)
from tests.patience import PATIENCE_SECONDS
from tests.services.sqs_proxy import Fault, FaultPlan
from tests.simulation.journal import Journal
from tests.simulation.parcels import Parcel, parcels, send
from tests.simulation.tally import Arrival, Tally, tally

_SENT_AT_ONCE: Final = 20
_END_TIMEOUT_SECONDS: Final = 240
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Who consumes and what goes wrong.

    ``chances`` are per request, the sender's as the consumers'. ``kills`` is how often a worker
    process is killed before one may live; None: there is none. ``away_seconds`` is how long the
    destination does not exist, ``denied_seconds`` how long nobody may send to the delay queue.
    """

    workers: int = 0
    functions: int = 0
    kills: int | None = None
    chances: Mapping[Fault, float] = field(default_factory=dict)
    away_seconds: float = 0
    denied_seconds: float = 0
    delays_ms: tuple[int, int] = (500, 8000)


class RealWorld:
    """One run of a setting on a local AWS; ``stretch`` makes the longest delays so much longer."""

    def __init__(
        self, aws: LocalAws, setting: Setting, *, seed: int, messages: int, stretch: float
    ) -> None:
        self._aws = aws
        self._setting = setting
        self._seed = seed
        self._messages = messages
        shortest, longest = setting.delays_ms
        self._delays_ms = (shortest, round(longest * stretch))
        self._journal = Journal()
        self._endpoint = Endpoint.parse(f"f-{uuid.uuid4().hex[:10]}")
        self._client = client_of(aws, aws.endpoint_url)
        self._queues = SqsQueues(self._client)
        self._arrived: list[ReceivedMessage] = []
        self._rejected: list[ReceivedMessage] = []

    def run(self) -> Tally:
        """Send, relay to the end, count."""
        create_endpoint(self._client, self._endpoint, hop_seconds=HOP_SECONDS)
        self._client.set_queue_attributes(
            QueueUrl=self._queues.url(self._endpoint.delay_queue),
            Attributes={"VisibilityTimeout": str(VISIBILITY_SECONDS)},
        )
        stop = threading.Event()
        with ExitStack() as stack:
            network = self._network(stack)
            pool = stack.enter_context(ThreadPoolExecutor(8))
            stack.callback(stop.set)  # first of all on leaving, or the pool would wait for ever
            jobs = [pool.submit(work, stop) for work in self._consumers(network)]
            event = pool.submit(self._event, network)
            sent = self._send(network)
            event.result()
            self._gather_until_quiet(jobs)
            stop.set()
            for job in jobs:
                job.result()
        self._gather()
        return tally(
            sent,
            map(self._arrival, self._arrived),
            map(self._arrival, self._rejected),
            self._journal,
            destination=self._endpoint.name,
            delay_queue=self._endpoint.delay_queue.name,
        )

    def _network(self, stack: ExitStack) -> Network:
        def plan(party: str) -> FaultPlan:
            return FaultPlan(seed=f"{self._seed} {party}", chances=self._setting.chances)

        return Network(
            aws=self._aws,
            journal=self._journal,
            plan=plan,
            stack=stack,
            denied=set(),
            read_seconds=STALL_SECONDS
            if Fault.STALLED in self._setting.chances
            else PATIENCE_SECONDS,
        )

    def _consumers(self, network: Network) -> list[Work]:
        setting, endpoint = self._setting, self._endpoint
        consumers = [worker(network, f"worker-{n}", endpoint) for n in range(setting.workers)]
        consumers += [
            function(network, f"function-{n}", endpoint) for n in range(setting.functions)
        ]
        if setting.kills is not None:
            mortal = MortalWorker(
                network, "process", endpoint, kills=setting.kills, seed=self._seed
            )
            consumers.append(mortal.run)
        return consumers

    def _send(self, network: Network) -> list[Parcel]:
        client = network.client(network.proxy("sender"))
        sender = DelaySender(client, hop_seconds=HOP_SECONDS, concurrency=2, idempotent=True)
        wanted = parcels(self._messages, self._delays_ms, seed=self._seed, now_ms=_now_ms())
        sent: list[Parcel] = []
        for start in range(0, len(wanted), _SENT_AT_ONCE):
            some = wanted[start : start + _SENT_AT_ONCE]
            sent += send(sender, self._endpoint.name, some, _now_ms)
        return sent

    def _event(self, network: Network) -> None:
        """What happens once, while messages are on their way."""
        if self._setting.denied_seconds:
            time.sleep(1)
            network.denied.add(("SendMessage", self._endpoint.delay_queue.name))
            time.sleep(self._setting.denied_seconds)
            network.denied.clear()
        if self._setting.away_seconds:
            assert not self._count(self._endpoint.queue), "what is in it would be deleted with it"
            self._client.delete_queue(QueueUrl=self._queues.url(self._endpoint.queue))
            time.sleep(self._setting.away_seconds)
            self._client.create_queue(QueueName=self._endpoint.name)

    def _gather_until_quiet(self, jobs: list[Future[None]]) -> None:
        """Receive until no queue holds anything any more, so that nothing more can arrive."""
        deadline = time.monotonic() + _END_TIMEOUT_SECONDS
        while True:
            # In this order: what leaves the delay queue is at the destination before.
            delayed = self._count(self._endpoint.delay_queue)
            self._gather()
            if not delayed and not self._count(self._endpoint.queue):
                return
            for job in jobs:
                assert not job.done() or job.result(), "a consumer has ended"
            assert time.monotonic() < deadline, f"{delayed} still delayed"
            time.sleep(0.2)

    def _count(self, queue: QueueRef) -> int:
        try:
            attributes = self._queues.attributes(self._queues.url(queue))
        except QueueMissing:
            return 1  # it will come back, and messages with it
        return sum(int(attributes[name]) for name in _COUNTS)

    def _gather(self) -> None:
        self._arrived += self._received(self._endpoint.queue)
        self._rejected += self._received(self._endpoint.error_queue)

    def _received(self, queue: QueueRef) -> list[ReceivedMessage]:
        received: list[ReceivedMessage] = []
        try:
            url = self._queues.url(queue)
            while copies := self._queues.receive_batch(url, wait_seconds=0):
                received += copies
                self._queues.delete_batch(url, copies)
        except QueueMissing:
            pass
        return received

    def _arrival(self, copy: ReceivedMessage) -> Arrival:
        timer_ms = self._journal.timer_seconds(copy.sqs_message_id) * 1000
        return Arrival(
            body=copy.body,
            attributes=copy.attributes,
            sqs_id=copy.sqs_message_id,
            visible_ms=(copy.sent_ms or 0) + timer_ms,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
