"""One endpoint as the console asks for it: its queues, its store, its error queue, its clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from sqsdelay.console.sampling import Answer, Patience, Sampled
from sqsdelay.console.schemas import Span, edges_of
from sqsdelay.console.settings import ConsoleSettings
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.readable import one_line
from sqsdelay.core.rejection import Rejection
from sqsdelay.errors import (
    ConfigurationError,
    NoStore,
    QueueUnavailable,
    SqsDelayError,
    StoreError,
    StoreUnavailable,
)
from sqsdelay.ledger import FileLedger
from sqsdelay.limits import SHORT_CALL_ATTEMPTS
from sqsdelay.operating.error_queue import ErrorQueue
from sqsdelay.operating.status import (
    EndpointStatus,
    Outlook,
    StoreStatus,
    deployed_store,
    endpoint_status,
    latest_of_sqs,
    outlook,
    store_status,
)
from sqsdelay.parking.schedule import Schedule
from sqsdelay.ports.queues import QueueAges, Queues
from sqsdelay.ports.stores import ParkingPlace, ParksFarAhead

if TYPE_CHECKING:
    from sqsdelay.sqs.sender import DelaySender

T = TypeVar("T")

QUEUES_FRESH_SECONDS: Final = 2.0
STORE_FRESH_SECONDS: Final = 2.0
PAID_STORE_FRESH_SECONDS: Final = 60.0
"""Of a store that reads what it counts, and is paid for each read."""
AGES_FRESH_SECONDS: Final = 60.0
"""CloudWatch has a new value each minute, and is paid for each question."""
ERRORS_FRESH_SECONDS: Final = 60.0
"""To look at an error queue is to receive from it: its messages' receive counts grow."""
ERRORS_LOOKED_AT: Final = 500
AGES_PATIENCE_SECONDS: Final = 1.0
"""Counts are not held up by ages, which come from another service."""
CLOCK_UNKNOWN_SECONDS: Final = 30.0
"""How long a clock that could not be asked is not asked again."""
NO_STORE_SECONDS: Final = 60.0
"""How long a deployed store that was not there is not looked for again."""

CONNECTIONS: Final = 10


class Source:
    """What is known of one endpoint. Thread-safe; nothing is asked before it is needed.

    Args:
        endpoint: the endpoint.
        settings: the console's.
    """

    def __init__(self, endpoint: Endpoint, settings: ConsoleSettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self._clock = SystemClock()
        self._lock = threading.Lock()
        # A store that hangs while it is opened keeps nobody from SQS.
        self._opening = threading.Lock()
        self._store_patience = Patience(f"the store of {endpoint.name}", StoreUnavailable)
        self._sqs_patience = Patience("SQS", QueueUnavailable)
        self._clock_unknown_until = float("-inf")
        self._queues: Queues | None = None
        self._sender: DelaySender | None = None
        self._place: ParkingPlace | None = None
        self._no_place: tuple[float, StoreError | NoStore] | None = None
        self._url = settings.stores.get(endpoint.name)
        self._ledger = None if settings.ledger is None else FileLedger(settings.ledger)
        self._ages: Sampled[Mapping[QueueRef, int]] | None = None
        counting = self._url is None or self._url.startswith(("sqlite:", "postgres"))
        fresh = STORE_FRESH_SECONDS if counting and self._url else PAID_STORE_FRESH_SECONDS
        self.queues_sample = Sampled(self._ask_queues, fresh_seconds=QUEUES_FRESH_SECONDS)
        self.store_sample = Sampled(self._ask_store, fresh_seconds=fresh)
        self.outlooks = {
            span: Sampled(partial(self._ask_outlook, span), fresh_seconds=5 * fresh)
            for span in Span
        }
        self.errors_sample = Sampled(self._ask_errors, fresh_seconds=ERRORS_FRESH_SECONDS)

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self.endpoint.name

    @property
    def store_url(self) -> str | None:
        """Where its messages are parked; None where no store was named and none found."""
        return self._url

    @property
    def on_sqs(self) -> bool:
        """Whether its messages are released to SQS."""
        return self.settings.rabbitmq is None

    def queues(self) -> Queues:
        """SQS, asked with short time limits.

        Raises:
            ConfigurationError: no region, or an unknown profile.
        """
        from sqsdelay.sqs.client import default_client
        from sqsdelay.sqs.cloudwatch import CloudWatchAges, short_client
        from sqsdelay.sqs.queues import SqsQueues

        with self._lock:
            if self._queues is None:
                client = default_client(connections=CONNECTIONS, attempts=SHORT_CALL_ATTEMPTS)
                self._queues = SqsQueues(client)
                ages = CloudWatchAges(short_client("cloudwatch"))
                # Those of the due queue too, where there is one; the destination's are its receivers'.
                asked = [self.endpoint.delay_queue, self.endpoint.hand_over_queue]
                self._ages = Sampled(
                    lambda: ages.ask(asked),
                    fresh_seconds=AGES_FRESH_SECONDS,
                    patience_seconds=AGES_PATIENCE_SECONDS,
                )
            return self._queues

    def place(self) -> ParkingPlace:
        """Where its messages wait.

        Raises:
            NoStore: none was named, and no deployed one is there.
            ConfigurationError, StoreMissing, StoreUnavailable
        """
        from sqsdelay.stores import open_place

        if self._place is not None:
            return self._place
        with self._opening:
            if self._place is not None:
                return self._place
            url, found = self._url, True
            if url is None:
                if not self.on_sqs:
                    raise self._no_store()
                if self._no_place is not None and self._clock.monotonic() < self._no_place[0]:
                    raise self._no_place[1]
                url, found = deployed_store(self.endpoint), False
            place = open_place(
                url,
                endpoint=self.name,
                table=self.settings.table,
                schema=self.settings.schema,
                create=False,
            )
            if not found:
                try:
                    place.pending_count()
                except StoreError as error:
                    place.close()
                    found_none = error if _hangs(error) else self._no_store()
                    seconds = self._clock.monotonic() + NO_STORE_SECONDS
                    self._no_place = seconds, found_none
                    raise found_none from error
                self._url = url
            self._place = place
            return place

    def of_store(self, ask: Callable[[ParkingPlace], T]) -> Answer[T]:
        """Ask its store; the answer raises what `place` does, and where there is none in seconds."""
        return self._store_patience.begin(lambda: ask(self.place()))

    def of_sqs(self, ask: Callable[[], T]) -> T:
        """Ask SQS.

        Raises:
            QueueUnavailable: there is no answer in seconds.
        """
        return self._sqs_patience.ask(ask)

    def _no_store(self) -> NoStore:
        return NoStore(
            f"no store is known for {self.name}, so what waits in its delay queue cannot be listed; "
            "give --store URL if its messages are parked"
        )

    def errors(self) -> ErrorQueue:
        """Its error queue.

        Raises:
            ConfigurationError
        """
        if not self.on_sqs:
            raise ConfigurationError(
                "the console counts error queues on RabbitMQ, and does not read them; use the broker's "
                "own tools"
            )
        return ErrorQueue(self.queues(), self.endpoint)

    def schedule(self) -> Schedule:
        """Its parked messages, to be changed.

        Raises:
            NoStore, ConfigurationError, StoreMissing, StoreUnavailable
        """
        return Schedule(self.place(), endpoint=self.name, ledger=self._ledger)

    def sender(self) -> DelaySender:
        """Sends to it as its producers do; parks at once where it has a store.

        Raises:
            ConfigurationError
        """
        from sqsdelay.sqs.client import default_client
        from sqsdelay.sqs.sender import DelaySender

        place: ParkingPlace | None = None
        with suppress(NoStore):
            place = self.of_store(lambda found: found).get()
        with self._lock:
            if self._sender is None:
                self._sender = DelaySender(
                    default_client(connections=CONNECTIONS, attempts=SHORT_CALL_ATTEMPTS),
                    hop_seconds=self.settings.hop_seconds,
                    max_delay_seconds=self.settings.max_delay_seconds,
                    store=place,
                    ledger=self._ledger,
                )
            return self._sender

    @property
    def ledger(self) -> FileLedger | None:
        """Where what is done here is recorded."""
        return self._ledger

    def latest_ms(self) -> int:
        """The most the clock may read that its messages are released by: a change applies to what was
        sent by then.

        SQS's; of RabbitMQ the store's. Where neither tells, this machine's, which is enough for what is
        parked.
        """
        from botocore.exceptions import BotoCoreError

        from sqsdelay.stores.clocks import StoreClock

        if self._clock.monotonic() < self._clock_unknown_until:
            return self._clock.now_ms()
        try:
            if self.on_sqs:
                return self.of_sqs(lambda: latest_of_sqs(self.queues(), self.endpoint.queue))
            return self.of_store(lambda place: StoreClock(place).latest_ms()).get()
        except (SqsDelayError, BotoCoreError):
            self._clock_unknown_until = self._clock.monotonic() + CLOCK_UNKNOWN_SECONDS
            return self._clock.now_ms()

    def changed(self) -> None:
        """Something was changed: what is known is out of date."""
        for sample in (self.queues_sample, self.store_sample, self.errors_sample):
            sample.forget()
        for each in self.outlooks.values():
            each.forget()

    def close(self) -> None:
        """Let go of connections."""
        # Without a lock, which a question that hangs may hold.
        if self._place is not None:
            self._place.close()

    def _ask_queues(self) -> EndpointStatus:
        return endpoint_status(self.queues(), self.endpoint, _Known(self._ages))

    def _ask_store(self) -> StoreStatus | None:
        try:
            return store_status(self.place(), now_ms=self._clock.now_ms())
        except NoStore:
            return None

    def _ask_outlook(self, span: Span) -> Outlook | None:
        try:
            return outlook(self.place(), edges_of(span, self._clock.now_ms()))
        except NoStore:
            return None

    def _ask_errors(self) -> list[Rejection]:
        return self.errors().look(ERRORS_LOOKED_AT)

    @property
    def ages_trouble(self) -> str | None:
        """Why it is not known how old messages are."""
        return None if self._ages is None else self._ages.known().trouble

    @property
    def soonest_seconds(self) -> int | None:
        """Its store can make nothing due sooner than that; None where it can."""
        return self._place.soonest_seconds if isinstance(self._place, ParksFarAhead) else None


def _hangs(error: StoreError) -> bool:
    """Whether a table may be there, and was not told of: DynamoDB did not answer."""
    from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

    return isinstance(error.__cause__, ConnectTimeoutError | ReadTimeoutError)


class _Known(QueueAges):
    """What CloudWatch answered within the last minute."""

    def __init__(self, ages: Sampled[Mapping[QueueRef, int]] | None) -> None:
        self._ages = ages

    def oldest_seconds(self, queues: Sequence[QueueRef]) -> Mapping[QueueRef, int]:
        known = None if self._ages is None else self._ages.get().value
        return {queue: age for queue, age in (known or {}).items() if queue in queues}


def gathered(samples: Sequence[Sampled[T]]) -> None:
    """Ask all at once, so that waiting for them takes as long as the slowest."""
    for sample in samples:
        sample.start()


def told(ask: Callable[[], T]) -> tuple[T | None, str | None]:
    """An answer, or what kept it from being given."""
    try:
        return ask(), None
    except SqsDelayError as error:
        return None, one_line(error)
