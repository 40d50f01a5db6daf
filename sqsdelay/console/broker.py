"""The RabbitMQ that endpoints' messages are released to, or delayed by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sqsdelay.console.sampling import Sampled
from sqsdelay.console.schemas import EndpointView, QueueView
from sqsdelay.core.delay import Delay
from sqsdelay.limits import ERROR_QUEUE_SUFFIX

if TYPE_CHECKING:
    from datetime import datetime

    from sqsdelay.rabbitmq import RabbitMqSendResult

FRESH_SECONDS: Final = 3.0
CONNECT_SECONDS: Final = 5.0


class Broker:
    """Counts the queues of the delay infrastructure and of endpoints, and sends through it.

    Args:
        url: of the broker.
        prefix: of the infrastructure; None is sqsdelay's own.
        endpoints: the queues to count.

    Raises:
        MissingExtra: pika is not installed.
        ConfigurationError: no URL of a broker.
    """

    def __init__(self, url: str, prefix: str | None, endpoints: Sequence[str]) -> None:
        from sqsdelay.rabbitmq.connection import parameters
        from sqsdelay.rabbitmq.topology import Topology

        self._url = url
        self._given = parameters(url)
        self._topology = Topology() if prefix is None else Topology(prefix)
        self._endpoints = endpoints
        self._sample = Sampled(self._ask, fresh_seconds=FRESH_SECONDS)

    def start(self) -> None:
        """Ask, and do not wait."""
        self._sample.start()

    def put_queues(self, view: EndpointView) -> int | None:
        """Add what is known of an endpoint's queues; returns when it was asked for."""
        sample = self._sample.get()
        if sample.trouble:
            view.trouble.append(f"RabbitMQ: {sample.trouble}")
        counts = sample.value
        if counts is None:
            return None
        levels = [queue.name for queue in self._topology.queues()]
        undeliverable = self._topology.undeliverable
        view.pending = sum(counts.get(name, 0) for name in levels if name != undeliverable)
        view.errors = counts.get(view.endpoint + ERROR_QUEUE_SUFFIX)
        shown = (
            ("delay levels, of all endpoints", f"{self._topology.prefix} levels", view.pending),
            ("undeliverable, of all endpoints", undeliverable, counts.get(undeliverable)),
            ("destination", view.endpoint, counts.get(view.endpoint)),
            ("error queue", view.endpoint + ERROR_QUEUE_SUFFIX, view.errors),
        )
        view.queues = [
            QueueView(name=name, role=role, visible=count)
            for role, name, count in shown
            if count is not None
        ]
        if view.endpoint not in counts:
            view.trouble.append(f"RabbitMQ: queue {view.endpoint} does not exist")
        if counts.get(undeliverable):
            view.trouble.append(
                f"RabbitMQ: {counts[undeliverable]:,} messages were due while no queue was bound for "
                "them; sqsdelay rabbitmq bind ENDPOINT sends them on"
            )
        return sample.at_ms

    def send(
        self,
        endpoint: str,
        body: str,
        *,
        delay: Delay | None,
        due_at: datetime | None,
        headers: Mapping[str, str],
        message_id: str | None,
    ) -> RabbitMqSendResult:
        """Send a message through the delay levels.

        Raises:
            SqsDelayError: as `RabbitMqSender.send`.
        """
        from sqsdelay.rabbitmq import RabbitMqSender

        with RabbitMqSender(
            self._url, prefix=self._topology.prefix, connect_seconds=CONNECT_SECONDS
        ) as sender:
            return sender.send(
                endpoint,
                body,
                delay=delay,
                due_at=due_at,
                headers=dict(headers),
                message_id=message_id,
            )

    def _ask(self) -> dict[str, int]:
        from sqsdelay.rabbitmq.management import depths, ready

        own = [name for each in self._endpoints for name in (each, each + ERROR_QUEUE_SUFFIX)]
        return ready(self._given, self._topology) | depths(self._given, own)
