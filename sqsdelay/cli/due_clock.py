"""The clock that ``--delay`` counts from: the one by which the message will be released."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from sqsdelay.cli.console import tell
from sqsdelay.core.delay import parse_delay, parse_due_at
from sqsdelay.core.due_time import due_time
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, QueueMissing, QueueUnavailable
from sqsdelay.operating.broker_time import latest_of_sqs

if TYPE_CHECKING:
    from sqsdelay.ports.stores import ParkingPlace
    from sqsdelay.sqs.queues import SqsQueues


class DueClock:
    """The clock of those who release an endpoint's messages.

    Args:
        endpoint: where they are released to.
        store: where they wait.
        store_url: its URL.
        to: the RabbitMQ they are released to; None is SQS.
    """

    def __init__(self, endpoint: str, store: ParkingPlace, store_url: str, to: str | None) -> None:
        self._endpoint = Endpoint.parse(endpoint)
        self._store = store
        self._only_sqs = store_url.startswith(("dynamodb:", "scheduler:"))
        self._sqs: SqsQueues | None = None
        self._ask_sqs = to is None

    def latest_ms(self) -> int:
        """The most that clock may read now, epoch milliseconds.

        Raises:
            ConfigurationError, QueueUnavailable: SQS cannot be asked.
            StoreUnavailable, StoreMissing: the database cannot be asked.
        """
        if self._ask_sqs:
            try:
                return self._latest_of_sqs()
            except ConfigurationError as error:
                if self._only_sqs:
                    raise
                self._ask_sqs = False
                line = f"the delay counts from the store's clock, because SQS cannot be reached: {error}"
                tell(line)
        from sqsdelay.stores.clocks import StoreClock

        return StoreClock(self._store).latest_ms()

    def _latest_of_sqs(self) -> int:
        from sqsdelay.sqs.client import default_client
        from sqsdelay.sqs.queues import SqsQueues

        if self._sqs is None:
            self._sqs = SqsQueues(default_client(connections=1))
        try:
            return latest_of_sqs(self._sqs, self._endpoint.queue)
        except (QueueMissing, QueueUnavailable) as error:
            raise QueueUnavailable(
                f"SQS did not give its time, from which the delay counts: {error}; give "
                "--due-at, or --to if the store is released to RabbitMQ"
            ) from error


def new_due_ms(delay: str | None, due_at: str | None, *, now_ms: Callable[[], int]) -> int:
    """The due time that --delay or --due-at names, epoch milliseconds.

    Args:
        now_ms: what a delay counts from; asked for a delay only.

    Raises:
        BadParameter: both or none of them.
        InvalidDelay
    """
    if (delay is None) == (due_at is None):
        raise typer.BadParameter("give either --delay or --due-at")
    due = due_time(
        None if delay is None else parse_delay(delay),
        None if due_at is None else parse_due_at(due_at),
    )
    return due.due_ms(0 if due.absolute else now_ms())
