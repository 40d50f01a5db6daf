"""One endpoint as the console asks for it: its queues, its store, its clock, and what failed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from botocore.exceptions import BotoCoreError, ConnectTimeoutError, ReadTimeoutError

from sqsdelay import errors
from sqsdelay.console import ConsoleSettings
from sqsdelay.console.sampling import Patience, Sampled
from sqsdelay.core import limits
from sqsdelay.core.delay import Clock, due_at_ms, utc
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import Attribute
from sqsdelay.core.rejection import Rejection
from sqsdelay.ledger import FileLedger
from sqsdelay.operating import status
from sqsdelay.operating.error_queue import NO_REASON, ErrorQueue
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.cloudwatch import CloudWatchAges, short_client
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.sqs.sender import DelaySender
from sqsdelay.stores import open_place
from sqsdelay.stores.shared import StoreClock

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

T = TypeVar("T")

FRESH_SECONDS: Final = 2.0
PAID_FRESH_SECONDS: Final = 60.0
"""Of what is paid for by the question: CloudWatch, which has a new value each minute, and a store that reads
what it counts; a deployed one that was not there is not looked for again any sooner."""
ERRORS_LOOKED_AT: Final = 1000
AGES_PATIENCE_SECONDS: Final = 1.0
"""Counts are not held up by ages, which come from another service."""
CLOCK_UNKNOWN_SECONDS: Final = 30.0
"""How long a clock that could not be asked is not asked again."""
SPANS: Final = {"hours": 24, "days": 30, "months": 12}
"""How far ahead one can look."""
BODY_SHOWN: Final = 64 * 1024
"""Characters of a body that are sent to a browser."""
TEXT_KEPT: Final = 4096
"""Characters of a failed message's reason, and of each of its attributes, that are kept."""
_VARIES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\b[\w-]*\d[\w.:-]*")
"""Names in quotes, and words with a digit in them: ids, numbers, instants."""


def text_of(raw: bytes | str) -> str:
    """Text that a page can carry: what is no UTF-8, or half a character, as ``\\xff`` and ``\\ud800``."""
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")


def kind_of_body(body: str) -> str:
    """What a body looks like: JSON, XML, text, or no text at all; a long one by its ends."""
    ends = body[:BODY_SHOWN].lstrip()[:1] + body[-BODY_SHOWN:].rstrip()[-1:]
    if ends in ("{}", "[]"):
        try:
            if len(body) <= BODY_SHOWN:
                json.loads(body)
        except (ValueError, RecursionError):
            return "text"
    told = {"": "empty", "{}": "JSON", "[]": "JSON", "<>": "XML"}
    return told.get(ends) or ("binary" if "\\x" in body[:BODY_SHOWN] else "text")


class Body(NamedTuple):
    """A body: what it looks like, how many bytes it has, and its text, or the beginning of that."""

    kind: str
    size: int
    text: str
    cut: bool = False

    @classmethod
    def of(cls, raw: bytes | str) -> Self:
        size = len(raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass"))
        text = text_of(raw)
        return cls(kind_of_body(text), size, text)


class Failed(NamedTuple):
    """A message of the error queue, without what no page shows: a thousand may have 1 MiB each. ``key`` is
    SQS's id of the copy, for two may have one message id; ``kind`` is the reason without the names and
    numbers in it: equal for messages that failed alike."""

    key: str
    message_id: str
    reason: str | None
    kind: str
    due_ms: int | None
    rejected_ms: int | None
    receives: int | None
    body: Body
    attributes: Mapping[str, Attribute]

    @classmethod
    def of(cls, rejection: Rejection) -> Self:
        copy, original = rejection.copy, rejection.original
        body = Body.of(original.body)
        # As much of it as takes 64 KiB of memory, where Python takes up to 4 bytes a character.
        most = BODY_SHOWN if body.text.isascii() else BODY_SHOWN // 4
        reason = None if rejection.reason is None else text_of(rejection.reason[:TEXT_KEPT])
        return cls(
            key=copy.sqs_message_id,
            message_id=rejection.message_id[:TEXT_KEPT],
            reason=reason,
            kind=NO_REASON if reason is None else text_of(_VARIES.sub("…", reason)),
            due_ms=rejection.due if isinstance(rejection.due, int) else None,
            rejected_ms=copy.sent_ms,
            receives=copy.receive_count,
            body=body._replace(text=body.text[:most], cut=len(body.text) > most),
            attributes={name: _cut(value) for name, value in original.attributes.items()},
        )


def _cut(value: Attribute) -> Attribute:
    if "BinaryValue" in value:
        return {**value, "BinaryValue": value["BinaryValue"][:TEXT_KEPT]}
    text = value["StringValue"]
    return value if len(text) <= TEXT_KEPT else {**value, "StringValue": f"{text[:TEXT_KEPT]}…"}


class BrokerStatus(NamedTuple):
    """An endpoint's queues on RabbitMQ, as `EndpointStatus` has them on SQS; ``pending`` counts all
    endpoints, ``faults`` says what an operator should mend there."""

    pending: int
    errors: int | None
    queues: list[dict[str, Any]]
    faults: list[str]
    in_flight: None = None
    oldest_seconds: None = None


def edges_of(span: str, now_ms: int) -> list[int]:
    """1970, now, and the ends of the hours, days or months ahead in UTC: what is overdue comes first."""
    hour = utc(now_ms).replace(minute=0, second=0, microsecond=0)
    day, ahead = hour.replace(hour=0), range(1, SPANS[span] + 1)
    months = (day.year * 12 + day.month - 1 + n for n in ahead)
    ends = {
        "hours": (hour + timedelta(hours=n) for n in ahead),
        "days": (day + timedelta(days=n) for n in ahead),
        "months": (day.replace(year=m // 12, month=m % 12 + 1, day=1) for m in months),
    }
    return [0, now_ms, *map(due_at_ms, ends[span])]


class Source:
    """What is known of one endpoint. Thread-safe; nothing is asked before it is needed."""

    def __init__(self, endpoint: Endpoint, settings: ConsoleSettings, clock: Clock) -> None:
        self.endpoint, self.name = endpoint, endpoint.name
        self.settings, self.clock = settings, clock
        self.store_url = settings.stores.get(endpoint.name)
        """Where its messages are parked; None where no store was named and none found."""
        self.on_sqs = settings.rabbitmq is None
        self.ledger = None if settings.ledger is None else FileLedger(settings.ledger)
        self.unmoved: tuple[float, float, tuple[int, int]] | None = None
        """Since when nothing on its queues moves, until when that was seen; how many are in hand, wait."""
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        # A store that hangs while it is opened keeps nobody from SQS.
        self._opening = threading.Lock()
        self._store_patience = Patience(f"the store of {self.name}", errors.StoreUnavailable)
        self.of_sqs = Patience("SQS", errors.QueueUnavailable).ask
        self._clock_unknown_until = float("-inf")
        self._place: ParkingPlace | None = None
        self._no_place: tuple[float, errors.SqsDelayError] | None = None
        if settings.rabbitmq is not None:
            from sqsdelay.rabbitmq.connection import parameters

            parameters(settings.rabbitmq)
        counting = self.store_url and self.store_url.startswith(("sqlite:", "postgres"))
        fresh = FRESH_SECONDS if counting else PAID_FRESH_SECONDS
        self.queues_sample = Sampled(self._ask_queues, FRESH_SECONDS, clock=clock)
        self.store_sample = Sampled(self._ask_store, fresh, clock=clock)
        self.errors_sample = Sampled(self._ask_errors, PAID_FRESH_SECONDS, clock=clock)
        self.ages_sample = Sampled(self._ask_ages, PAID_FRESH_SECONDS, clock=clock)
        self.outlooks = {
            span: Sampled(
                partial(self._ask_outlook, span), max(fresh, 5 * FRESH_SECONDS), clock=clock
            )
            for span in SPANS
        }
        """How many parked messages become due, by how far ahead one looks."""

    @property
    def overdue_remedy(self) -> str:
        """What to do where nobody releases what is due."""
        return status.overdue_remedy(self.endpoint, self.store_url or "")

    @cached_property
    def _client(self) -> SQSClient:
        with self._lock:  # boto3 makes one client at a time.
            return default_client(connections=10, attempts=limits.SHORT_CALL_ATTEMPTS)

    @cached_property
    def queues(self) -> SqsQueues:
        """SQS, asked with short time limits."""
        return SqsQueues(self._client)

    @cached_property
    def _cloudwatch(self) -> CloudWatchAges:
        with self._lock:
            return CloudWatchAges(short_client("cloudwatch"))

    def oldest_seconds(self, queues: Sequence[QueueRef]) -> Mapping[QueueRef, int]:
        """The ages of the oldest messages that CloudWatch answered within the last minute."""
        known = self.ages_sample.get(AGES_PATIENCE_SECONDS).value or {}
        return {queue: age for queue, age in known.items() if queue in queues}

    def place(self) -> ParkingPlace:
        """Where its messages wait; raises `NoStore` where none was named, and no deployed one is there."""
        with self._opening:
            if self._place is None:
                self._place = self._found()
            return self._place

    def _found(self) -> ParkingPlace:
        """The store that was named, or a deployment's; whether there is one is not asked again at once."""
        if self.store_url is not None:
            return open_place(self.store_url, endpoint=self.name, create=False)
        no_store = errors.NoStore(
            f"no store is known for {self.name}, so what waits in its delay queue cannot be listed; "
            "give --store URL if its messages are parked"
        )
        if not self.on_sqs:
            raise no_store
        if self._no_place is not None and self.clock.monotonic() < self._no_place[0]:
            raise self._no_place[1]
        url = status.deployed_store(self.endpoint)
        place = open_place(url, endpoint=self.name, create=False)
        try:
            place.pending_count()
        except errors.StoreError as error:
            place.close()
            # A table may be there, and was not told of: DynamoDB did not answer.
            hangs = isinstance(error.__cause__, ConnectTimeoutError | ReadTimeoutError)
            told = error if hangs or isinstance(error, errors.SchemaMismatch) else no_store
            self._no_place = self.clock.monotonic() + PAID_FRESH_SECONDS, told
            raise told from error
        self.store_url = url
        return place

    def of_store(self, ask: Callable[[ParkingPlace], T]) -> T:
        """Ask its store; `StoreUnavailable` where there is no answer in seconds."""
        return self._store_patience.ask(lambda: ask(self.place()))

    def errors(self) -> ErrorQueue:
        if not self.on_sqs:
            raise errors.ConfigurationError(
                "the console counts error queues on RabbitMQ, and does not read them; use the broker's "
                "own tools"
            )
        return ErrorQueue(self.queues, self.endpoint)

    def sender(self) -> DelaySender:
        """Sends to it as its producers do; parks at once where it has a store."""
        place: ParkingPlace | None = None
        with suppress(errors.NoStore):
            place = self.of_store(lambda found: found)
        return DelaySender(
            self._client,
            hop_seconds=self.settings.hop_seconds,
            max_delay_seconds=self.settings.max_delay_seconds,
            store=place,
            ledger=self.ledger,
        )

    def latest_ms(self) -> int:
        """The most the clock may read that its messages are released by: a change applies to what was
        sent by then. SQS's, of RabbitMQ the store's; this machine's, where neither tells, is enough for
        what is parked."""
        if self.clock.monotonic() < self._clock_unknown_until:
            return self.clock.now_ms()
        try:
            if self.on_sqs:
                return self.of_sqs(lambda: status.latest_of_sqs(self.queues, self.endpoint.queue))
            return self.of_store(lambda place: StoreClock(place).latest_ms())
        except (errors.SqsDelayError, BotoCoreError):
            self._clock_unknown_until = self.clock.monotonic() + CLOCK_UNKNOWN_SECONDS
            return self.clock.now_ms()

    @property
    def soonest_seconds(self) -> int | None:
        """Its store can make nothing due sooner than that; None where it can."""
        return None if self._place is None else self._place.soonest_seconds or None

    def start(self) -> None:
        """Ask for its numbers, so that what is down is known by the time that its page is shown."""
        self.queues_sample.start()
        self.store_sample.start()

    def check_not_stopping(self) -> None:
        """Raise where the console is being stopped: a change goes no further."""
        if self.stopping.is_set():
            told = "the console was stopped; messages without an outcome were not touched"
            raise errors.SqsDelayError(told)

    def changed(self) -> None:
        """Something was changed: what is known is out of date."""
        kept: list[Sampled[Any]] = [self.queues_sample, self.store_sample, self.errors_sample]
        for sample in (*kept, *self.outlooks.values()):
            sample.forget()

    def close(self) -> None:
        # Without a lock, which a question that hangs may hold.
        if self._place is not None:
            self._place.close()

    def _ask_queues(self) -> status.EndpointStatus | BrokerStatus:
        if self.on_sqs:
            return status.endpoint_status(self.queues, self.endpoint, self)
        from sqsdelay.rabbitmq.connection import Session, parameters
        from sqsdelay.rabbitmq.management import ready
        from sqsdelay.rabbitmq.topology import OWN_PREFIX, Topology

        topology = Topology(self.settings.prefix or OWN_PREFIX)
        own, error_queue = self.name, self.name + limits.ERROR_QUEUE_SUFFIX
        with Session(parameters(self.settings.rabbitmq or "")) as session:
            counts = ready(session, topology)
            arrived, failed = session.count(own), session.count(error_queue)
        if arrived is None:
            raise errors.QueueMissing(f"queue {own} does not exist; declare it on the broker")
        lost = counts.pop(topology.undeliverable, 0)
        pending = sum(counts.values())
        shown = (
            (f"{topology.prefix} levels", "delay levels, of all endpoints", pending),
            (topology.undeliverable, "undeliverable, of all endpoints", lost),
            (own, "destination", arrived),
            (error_queue, "error queue", failed),
        )
        unknown = dict.fromkeys(("in_flight", "delayed", "oldest_seconds"))
        queues = [
            {"name": name, "role": role, "visible": visible, **unknown}
            for name, role, visible in shown
            if visible is not None
        ]
        unbound = (
            f"{lost:,} messages were due while no queue was bound for them; "
            f"{topology.command('bind', 'ENDPOINT')} sends them on"
        )
        return BrokerStatus(pending, failed, queues, [unbound] if lost else [])

    def _ask_store(self) -> status.StoreStatus | None:
        with suppress(errors.NoStore):
            return status.store_status(self.place(), now_ms=self.clock.now_ms())
        return None

    def _ask_outlook(self, span: str) -> status.Outlook | None:
        with suppress(errors.NoStore):
            return status.outlook(self.place(), edges_of(span, self.clock.now_ms()))
        return None

    def _ask_errors(self) -> list[Failed]:
        return self.errors().look(ERRORS_LOOKED_AT, Failed.of)

    def _ask_ages(self) -> Mapping[QueueRef, int]:
        # Of the due queue too, where there is one; the destination's age is its receivers'.
        return self._cloudwatch.ask([self.endpoint.delay_queue, self.endpoint.hand_over_queue])
