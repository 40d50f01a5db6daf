"""The parties of a real-time scenario, each behind a proxy of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from botocore.config import Config

from sqsdelay import DelayConsumer
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.received_message import ReceivedMessage, from_boto3
from sqsdelay.sqs.client import client_config
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.testing import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.lambda_function import EventSource, LambdaFunction
from tests.services.processes import Running, running
from tests.services.sqs_proxy import Exchange, FaultPlan, SqsProxy
from tests.simulation.journal import Asked, Journal

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


HOP_SECONDS: Final = 1
VISIBILITY_SECONDS: Final = 3
"""A worker's own, 30 s by default, and the delay queue's, 180 s."""
STALL_SECONDS: Final = 2.5
"""How long an answer is waited for where connections stall, 5 s by default; long polls here take up to a
second. Elsewhere as long as a busy machine needs: who gives up is not told, and sends again."""
MAX_RECEIVES: Final = 2
"""Refused twice, to the error queue: five refusals with backoff would take more than a minute."""
_STARTED_SECONDS: Final = 120
_boto3_lock = threading.Lock()
"""Making a client is not thread-safe."""

Work = Callable[[threading.Event], None]
"""What a party does until the event is set."""


def client_of(
    aws: LocalAws, endpoint_url: str, *, read_seconds: float = PATIENCE_SECONDS
) -> SQSClient:
    """A client with the settings `DelaySender` and `DelayConsumer` use for theirs, in small."""
    config = client_config(connections=16, attempts=6).merge(Config(read_timeout=read_seconds))
    with _boto3_lock:
        client: SQSClient = aws.client("sqs", endpoint_url=endpoint_url, config=config)
    return client


@dataclass(kw_only=True)
class Network:
    """What lies between the parties and the local AWS: proxies, closed with ``stack``."""

    aws: LocalAws
    journal: Journal
    plan: Callable[[str], FaultPlan]
    stack: ExitStack
    denied: set[tuple[str, str]]
    read_seconds: float

    def client(self, proxy: SqsProxy) -> SQSClient:
        """A party's client."""
        return client_of(self.aws, proxy.endpoint_url, read_seconds=self.read_seconds)

    def proxy(self, party: str, interrupt: Callable[[str], None] = lambda _: None) -> SqsProxy:
        """A party's own way to SQS, journalled."""
        proxy = SqsProxy(
            self.aws.port,
            self.plan(party),
            on_exchange=ProxyJournal(self.journal, party),
            interrupt=interrupt,
            denied=self.denied,
        )
        return self.stack.enter_context(proxy)

    def environment(self, proxy: SqsProxy) -> dict[str, str]:
        """For a process of its own."""
        return self.aws.environment() | {"AWS_ENDPOINT_URL": proxy.endpoint_url}


def worker(network: Network, party: str, endpoint: Endpoint) -> Work:
    """A `DelayConsumer` in a thread."""
    consumer = DelayConsumer(
        endpoint.name,
        network.client(network.proxy(party)),
        hop_seconds=HOP_SECONDS,
        wait_seconds=1,
        visibility_seconds=VISIBILITY_SECONDS,
        max_receives=MAX_RECEIVES,
    )
    return consumer.run


def function(network: Network, party: str, endpoint: Endpoint) -> Work:
    """The Lambda function, with an event source that polls and deletes for it."""
    proxy = network.proxy(party)
    lambda_function = network.stack.enter_context(
        LambdaFunction(
            network.environment(proxy)
            | {
                "SQSDELAY_ENDPOINT": endpoint.name,
                "SQSDELAY_HOP_SECONDS": str(HOP_SECONDS),
                "SQSDELAY_MAX_RECEIVES": str(MAX_RECEIVES),
            }
        )
    )
    lambda_function.invoke({"Records": []})  # the cold start, before messages wait for it
    queue_url = SqsQueues(client_of(network.aws, network.aws.endpoint_url)).url(
        endpoint.delay_queue
    )
    return EventSource(network.client(proxy), queue_url, lambda_function).run


class MortalWorker:
    """``sqsdelay consume`` in a process, killed with SIGKILL and started again ``kills`` times.

    It is killed in turn at a random instant and when a delete of its is on the way to SQS.
    """

    def __init__(
        self, network: Network, party: str, endpoint: Endpoint, *, kills: int, seed: int
    ) -> None:
        self._network = network
        self._party = party
        self._endpoint = endpoint
        self._kills = kills
        self._random = Random(f"{party} {seed}")

    def run(self, stop: threading.Event) -> None:
        """Live and die until told to stop."""
        for life in range(self._kills + 1):
            party = f"{self._party}-{life + 1}"
            mortal = life < self._kills
            at_delete = mortal and life % 2 == 1
            interruption = _KillAtDelete(party, self._network.journal, self._random.randint(1, 3))
            proxy = self._network.proxy(party, interruption if at_delete else lambda _: None)
            with self._process(proxy) as process:
                interruption.process = process
                process.wait_for("consuming", timeout=_STARTED_SECONDS)
                if at_delete:
                    while not (stop.is_set() or interruption.killed.wait(0.1)):
                        pass
                    self._network.journal.inject()
                elif mortal:
                    stop.wait(self._random.uniform(0.2, 1.5))
                    self._network.journal.inject()
                else:
                    stop.wait()
                # Whatever it has asked for until now may still be done, and is its own doing.
                self._network.journal.died.add(party)

    def _process(self, proxy: SqsProxy) -> Any:
        settings = {
            "--hop": HOP_SECONDS,
            "--wait": 1,
            "--max-receives": MAX_RECEIVES,
            "--visibility": VISIBILITY_SECONDS,
        }
        options = [text for name, value in settings.items() for text in (name, str(value))]
        environment = self._network.environment(proxy)
        return running("consume", self._endpoint.name, *options, env=environment)


class _KillAtDelete:
    """Kills a process when its nth delete is about to reach SQS, which then never sees it."""

    def __init__(self, party: str, journal: Journal, deletes: int) -> None:
        self.process: Running | None = None
        self.killed = threading.Event()
        self._party = party
        self._journal = journal
        self._left = deletes
        self._lock = threading.Lock()

    def __call__(self, action: str) -> None:
        if self.killed.is_set():
            raise ConnectionResetError
        if action != "DeleteMessageBatch" or self.process is None:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._journal.died.add(self._party)
                self.process.process.kill()
                self.killed.set()
                raise ConnectionResetError


class ProxyJournal:
    """Writes one party's exchanges into the journal."""

    def __init__(self, journal: Journal, party: str) -> None:
        self.party = party
        self._journal = journal
        self._of_receipt: dict[str, ReceivedMessage] = {}

    def __call__(self, exchange: Exchange) -> None:
        if exchange.fault is not None:
            self._journal.inject()
        queue = str(exchange.request.get("QueueUrl", "")).rpartition("/")[2]
        if exchange.action.startswith("SendMessage"):
            self._sent(queue, exchange)
        elif exchange.action == "ReceiveMessage":
            self._received(queue, exchange)
        elif exchange.action == "DeleteMessageBatch":
            self._deleted(queue, exchange)

    def _sent(self, queue: str, exchange: Exchange) -> None:
        request, answer = exchange.request, exchange.answer or {}
        single = "Entries" not in request
        made = {sent["Id"]: sent["MessageId"] for sent in answer.get("Successful", ())}
        asked = [
            Asked(
                body=entry["MessageBody"],
                deduplication_id=entry.get("MessageDeduplicationId"),
                timer_seconds=entry.get("DelaySeconds"),
                made=answer.get("MessageId") if single else made.get(entry["Id"]),
            )
            for entry in ([request] if single else request["Entries"])
        ]
        self._journal.sent(
            self.party,
            queue,
            asked,
            at_ms=time.time_ns() // 1_000_000,
            answered=exchange.told,
            asked_ms=exchange.asked_ms,
        )

    def _received(self, queue: str, exchange: Exchange) -> None:
        if exchange.answer is None or not exchange.told:
            return
        copies = [
            from_boto3(raw, received_at=time.monotonic())
            for raw in exchange.answer.get("Messages", ())
        ]
        self._of_receipt |= {copy.receipt_handle: copy for copy in copies}
        self._journal.received(self.party, queue, copies, at_ms=time.time_ns() // 1_000_000)

    def _deleted(self, queue: str, exchange: Exchange) -> None:
        answer: Mapping[str, Any] = exchange.answer or {}
        done = {deleted["Id"] for deleted in answer.get("Successful", ())}
        asked = [
            (self._of_receipt[entry["ReceiptHandle"]], entry["Id"] in done)
            for entry in exchange.request["Entries"]
        ]
        self._journal.deleted(
            self.party,
            queue,
            [(copy.body, copy.sqs_message_id, deleted) for copy, deleted in asked],
            at_ms=time.time_ns() // 1_000_000,
            answered=exchange.told,
        )
