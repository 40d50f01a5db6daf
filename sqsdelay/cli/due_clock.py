"""The clock that ``--delay`` counts from: the one by which the message will be released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sqsdelay.cli.console import err
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, QueueMissing, QueueUnavailable

if TYPE_CHECKING:
    from sqsdelay.ports.stores import DelayedMessageStore
    from sqsdelay.sqs.queues import SqsQueues

To = Annotated[
    str | None,
    typer.Option(
        envvar="SQSDELAY_DISPATCH_TO",
        help="RabbitMQ that the dispatcher releases to, as in its --to: a delay then counts from the "
        "database's clock (PostgreSQL) or this machine's (SQLite), and else from SQS's.",
    ),
]


class DueClock:
    """The clock of those who release an endpoint's messages.

    Args:
        endpoint: where they are released to.
        store: where they wait.
        store_url: its URL.
        to: the RabbitMQ they are released to; None is SQS.
    """

    def __init__(
        self, endpoint: str, store: DelayedMessageStore, store_url: str, to: str | None
    ) -> None:
        self._endpoint = Endpoint.parse(endpoint)
        self._store = store
        self._only_sqs = store_url.startswith("dynamodb:")
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
                told = f"the delay counts from the store's clock, SQS cannot be asked: {error}"
                err.print(told, highlight=False, markup=False, soft_wrap=True)
        from sqsdelay.stores.clock import StoreClock

        return StoreClock(self._store).latest_ms()

    def _latest_of_sqs(self) -> int:
        from sqsdelay.sqs.client import default_client
        from sqsdelay.sqs.queues import SqsQueues

        if self._sqs is None:
            self._sqs = SqsQueues(default_client(connections=1))
        clock = self._sqs.broker_clock
        if not clock.synchronised:
            try:
                self._sqs.synchronise(self._endpoint.queue)
            except (QueueMissing, QueueUnavailable) as error:
                # A refusal is dated, too; what is no answer of SQS's tells nothing.
                if not clock.synchronised:
                    raise QueueUnavailable(
                        f"the delay has no start, for SQS does not tell its time: {error}; give a due "
                        "time (--due-at), or --to for a store that is released to RabbitMQ"
                    ) from error
        return clock.latest_ms()
