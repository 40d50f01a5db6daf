"""What the pages stand on: the endpoints, and what is done to messages: changed, retried, sent."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote

from sqsdelay import errors
from sqsdelay.console import ConsoleSettings
from sqsdelay.console.guard import Access
from sqsdelay.console.messages import LedgerFile, typed_due
from sqsdelay.console.sampling import in_words
from sqsdelay.console.source import Source, text_of
from sqsdelay.core.delay import Clock, SystemClock, due_at_ms, due_time, seconds_until, too_far
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import CONNECT_SECONDS, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import Message, Route, attributes_of, new_message_id, size_of
from sqsdelay.core.readable import attributes_of_texts, instant, one_line
from sqsdelay.core.rejection import Rejection
from sqsdelay.cost import Workload, bill, dollars, shipped_prices
from sqsdelay.cost.strategies import OF_STORE
from sqsdelay.operating.error_queue import Discard, Retry, RetryStatus
from sqsdelay.operating.status import CHANGED
from sqsdelay.parking import parking
from sqsdelay.ports.stores import ParkingPlace

logger = logging.getLogger("sqsdelay.console")

KEPT: Final = 200
"""Changes whose result can still be looked at."""
MOST_CHANGED: Final = 1000
"""Messages that one change is for."""
DONE_SHOWN: Final = 20
"""Messages of a change that are named although it was done to them; the others are counted."""
STOP_SECONDS: Final = 3.0
"""How long a console that is stopped waits for changes to let go of what they hold."""
DONE: Final = "done"
NOT_DONE: Final = "not-done"


class Outcome(NamedTuple):
    """What became of one message, in words; ``requested`` is what is left to the delay consumer."""

    message_id: str
    result: str
    text: str


Work = Generator[Outcome]
"""Does a change as it is read: what became of each message."""


@dataclass(slots=True)
class Change:
    """A change of one or many messages; equal to another if the same is asked for."""

    what: str
    endpoint: str
    request: object  # all else that was asked for
    who: str = field(compare=False)
    counts: Counter[str] = field(default_factory=Counter, compare=False)
    outcomes: list[Outcome] = field(default_factory=list, compare=False)
    """What could not be done, and the first `DONE_SHOWN` that were."""
    error: str | None = field(default=None, compare=False)
    ended: threading.Event = field(default_factory=threading.Event, compare=False)


class Services:
    """Everything a console does, without the web."""

    def __init__(
        self, settings: ConsoleSettings, access: Access, clock: Clock | None = None
    ) -> None:
        self.settings, self.access, self.clock = settings, access, clock or SystemClock()
        endpoints = [Endpoint.parse(each) for each in settings.endpoints]
        self.sources = {each.name: Source(each, settings, self.clock) for each in endpoints}
        self.ledger = LedgerFile(settings.ledger)
        self.changes: OrderedDict[str, Change] = OrderedDict()
        """Those whose result can be looked at, by the key of the form that asked for them."""
        self._lock = threading.Lock()

    def check_stores(self) -> None:
        """Raise SchemaMismatch for a store of another version. What else may be wrong with one its page
        tells, and goes on."""
        with ThreadPoolExecutor(len(self.sources)) as pool:
            asked = [pool.submit(each.of_store, parking.check) for each in self.sources.values()]
        for each in asked:
            if isinstance(error := each.exception(), errors.SchemaMismatch):
                raise error

    def source(self, endpoint: str | None) -> Source:
        """The endpoint of that name; the first one where none is named."""
        name = endpoint or next(iter(self.sources))
        if name not in self.sources:
            known = ", ".join(self.sources)
            raise errors.InvalidEndpoint(f"endpoint {name!r} is not shown here; use {known}")
        return self.sources[name]

    def make(self, key: str, change: Change, work: Work) -> Change:
        """Make a change; where the same was asked for by the same form before, its result is returned."""
        with self._lock:
            known = self.changes.setdefault(key, change)
            ended = [k for k, each in self.changes.items() if each.ended.is_set()]
            for old in ended[: max(0, len(self.changes) - KEPT)]:
                del self.changes[old]
        if known is change:
            self._run(change, work)
        elif known != change:
            raise errors.ConfigurationError(
                f"this form was used for another change ({known.what} on {known.endpoint}); load the "
                "page again"
            )
        known.ended.wait()
        return known

    def close(self) -> None:
        """End changes after what they are at, and let go of connections."""
        for source in self.sources.values():
            source.stopping.set()
        with self._lock:
            running = [each for each in self.changes.values() if not each.ended.is_set()]
        for change in running:
            change.ended.wait(STOP_SECONDS / len(running))
        for source in self.sources.values():
            source.close()

    def _run(self, change: Change, work: Work) -> None:
        label = one_line(f"{change.what} {change.endpoint} by {change.who}")
        counts = change.counts
        logger.info("%s: begun", label)
        try:
            with closing(work):
                for each in work:
                    counts[each.result] += 1
                    told = one_line(f"{each.message_id}: {each.result}, {each.text}")
                    logger.info("%s: %s", label, told)
                    if each.result != DONE or counts[DONE] <= DONE_SHOWN:
                        change.outcomes.append(each)
        except Exception as error:
            # Whoever waits for it must be told, and the log has to say why.
            change.error = in_words(error)
            if not isinstance(error, errors.SqsDelayError):
                logger.exception("%s: failed", label)
        finally:
            ended = f"failed: {change.error}" if change.error else "ended"
            some = ", ".join(f"{count} {result}" for result, count in counts.items())
            logger.info("%s: %s, %s", label, ended, some or "no messages")
            self.sources[change.endpoint].changed()
            # What could not be done comes first.
            change.outcomes.sort(key=lambda each: each.result == DONE)
            change.ended.set()


ON_PARKED: Final = ("cancel", "release", "reschedule")
ON_FAILED: Final = ("retry", "discard")
AT_ONCE: Final = 4
"""Messages changed at a time. Where a store answers for none of so many, the others are left alone."""


class Chosen(NamedTuple):
    """A parked message to change. With ``due_ms``, as it was seen: if it was moved since, nothing is done."""

    id: str
    due_ms: int | None

    @classmethod
    def of(cls, mark: str) -> Self:
        """What a list's box says: ``due_ms:id``, the id percent-encoded."""
        due, colon, message_id = mark.partition(":")
        if not colon or (due and not (due.isascii() and due.isdigit() and len(due) <= 15)):
            raise errors.ConfigurationError("the form names no message; load the page again")
        return cls(unquote(message_id), int(due) if due else None)


def of_parked(source: Source, action: str, chosen: Sequence[Chosen], due_ms: int | None) -> Work:
    """Cancel, release or reschedule messages, to ``due_ms`` (epoch milliseconds). Raises `InvalidDelay` where
    that is beyond what the endpoint takes."""
    now_ms = source.latest_ms()
    if problem := too_far(due_ms or 0, now_ms, source.settings.max_delay_seconds):
        raise errors.InvalidDelay(problem)
    moved_ms = now_ms if due_ms is None else due_ms
    done = {
        "cancel": "cancelled",
        "release": "due now: the dispatcher sends it next",
        "reschedule": f"moved to {instant(moved_ms)}",
    }[action]
    lost: list[errors.StoreUnavailable] = []

    def change(place: ParkingPlace, message: Chosen) -> parking.Change:
        kept = place.find(message.id)
        if kept is None and action == "release":
            told = "it is not in the store; it was released or cancelled meanwhile"
            raise errors.ConfigurationError(told)
        if kept is not None and message.due_ms not in (None, kept.due_ms):
            told = f"it was moved meanwhile, and is due at {instant(kept.due_ms)}; look again"
            raise errors.ConfigurationError(told)
        schedule = parking.Schedule(place, endpoint=source.name, ledger=source.ledger)
        if action == "cancel":
            return schedule.cancel(message.id, now_ms=now_ms)
        return schedule.reschedule(message.id, moved_ms, now_ms=now_ms)

    def attempt(message: Chosen) -> Outcome:
        try:
            answer = source.of_store(lambda place: change(place, message))
        except errors.SqsDelayError as error:
            text = f"not done: {error}"
            if isinstance(error, errors.StoreUnavailable):
                lost.append(error)
                text = f"perhaps not done, look again: {error}"
            return Outcome(message.id, NOT_DONE, text)
        result = NOT_DONE if answer is parking.Change.RELEASED else answer.value
        return Outcome(message.id, result, CHANGED[answer].format(done=done))

    def run() -> Work:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(chosen), AT_ONCE):
                source.check_not_stopping()
                yield from pool.map(attempt, chosen[start : start + AT_ONCE])
                if len(lost) == AT_ONCE:
                    # One that hangs would take many seconds for each of the others.
                    raise lost[0]
                lost.clear()

    return run()


def of_failed(source: Source, action: str, keys: Sequence[str], *, undated_now: bool) -> Work:
    """Send messages on to where they are due, or discard them for good. ``keys`` are SQS's ids of the copies,
    for two may have one message id; ``undated_now``: those that do not say when they are due are due now."""
    chosen = frozenset(keys)

    def wanted(rejection: Rejection) -> bool:
        # Asked before anything of a batch is changed.
        source.check_not_stopping()
        return rejection.copy.sqs_message_id in chosen

    known = {each.key: each.message_id for each in source.errors_sample.known().value or ()}
    missing = {key: text_of(known.get(key, key)) for key in keys}
    queue = source.errors()
    answers: Any
    if action == "retry":
        due_ms = source.latest_ms() if undated_now else None
        answers = queue.retry(where=wanted, due_ms=due_ms)
    else:
        answers = queue.discard(where=wanted)
    with closing(answers):
        for answer in answers:
            missing.pop(answer.rejection.copy.sqs_message_id, None)
            yield _answered(answer)
            if not missing:
                return
    text = "not found: somebody else has received it; unless deleted, it is back within two minutes"
    for message_id in missing.values():
        yield Outcome(message_id, NOT_DONE, text)


def _answered(answer: Retry | Discard) -> Outcome:
    text = f"still in the error queue: {answer.error}"
    if isinstance(answer, Retry) and answer.status is RetryStatus.NOT_DELETED:
        text = f"sent to {answer.queue}, but {text}; discard it there"
    elif answer.error is not None:
        text = f"not done, {text}"
    elif isinstance(answer, Discard):
        text = "discarded"
    else:
        due = "" if answer.due_ms is None else f", due {instant(answer.due_ms)}"
        text = f"sent to {answer.queue}{due}"
    result = DONE if answer.error is None else NOT_DONE
    return Outcome(text_of(answer.rejection.message_id), result, text_of(text))


FIELDS: Final = ("body", "delay", "due_at", "id", "group", "attributes")
"""What the form has; attributes are lines of ``NAME=VALUE``."""


def message_of(source: Source, given: Mapping[str, str]) -> Message:
    """The message that a form describes; raises what is wrong with it."""
    if not given["body"]:
        raise errors.ConfigurationError("the body is empty; SQS requires at least 1 character")
    delay, due_at = typed_due(given["delay"], given["due_at"])
    lines = [line.strip() for line in given["attributes"].splitlines() if line.strip()]
    attributes = attributes_of_texts(lines)
    group = given["group"].strip() or None
    binary = any(isinstance(each, dict) and "BinaryValue" in each for each in attributes.values())
    if not source.on_sqs and (group or binary):
        told = "the console cannot send message groups or binary headers to RabbitMQ"
        raise errors.InvalidMessage(told)
    message_id = given["id"].strip() or None
    return Message(given["body"], delay, due_at, attributes, message_id, group)


def preview(source: Source, message: Message) -> dict[str, Any]:
    """Where a message would go, when it would arrive, and what that costs, without fixed costs. Nothing is
    sent, and what `QueueSender.send` would refuse is raised."""
    size = size_of(message.body, attributes_of(message.attributes))
    if not source.on_sqs:
        now_ms = source.latest_ms()
        due_ms = due_time(message.delay, message.due_at).due_ms(now_ms)
        if problem := too_far(due_ms, now_ms, source.settings.max_delay_seconds):
            raise errors.InvalidDelay(problem)
        route = "delay-level" if due_ms > now_ms else "direct"
        return {"route": route, "due_ms": due_ms, "bytes": size, "cost_of": "only your broker"}
    sender = source.sender()
    found = source.of_sqs(lambda: sender.preview(source.endpoint.address, message))
    assert found.route is not None
    assert found.due is not None
    due_ms = due_at_ms(found.due)
    seconds = seconds_until(due_ms, source.latest_ms())
    kind = (source.store_url or "").partition(":")[0]
    strategy, cost_of = "relay", "SQS requests and Lambda"
    if seconds > MAX_MESSAGE_TIMER_SECONDS and found.route is not Route.DELAY_QUEUE:
        if kind in OF_STORE:
            strategy, cost_of = OF_STORE[kind], "SQS requests, Lambda and the store"
        else:
            seconds, cost_of = 0, f"the send to its destination; the {kind or 'its'} store is extra"
    hop = source.settings.hop_seconds
    load = Workload(delay_seconds=seconds, message_bytes=max(1, size), hop_seconds=hop)
    paid = bill(strategy, load, shipped_prices())
    return {
        "route": found.route,
        "due_ms": due_ms,
        "bytes": size,
        "hops": found.route is Route.DELAY_QUEUE and load.hops,
        "cost": None if paid.impossible else dollars(paid.for_messages),
        "cost_of": cost_of,
    }


def sent(source: Source, message: Message) -> Work:
    # Named now, by when it is due, so that every store finds it by its id.
    due_ms = due_time(message.delay, message.due_at).due_ms(source.latest_ms())
    message_id = message.message_id or new_message_id(due_ms)
    given = asdict(message) | {"message_id": message_id}
    result: Any
    if source.on_sqs:
        result = source.sender().send(source.endpoint.address, **given)
    else:
        from sqsdelay.rabbitmq import RabbitMqSender
        from sqsdelay.rabbitmq.topology import OWN_PREFIX

        url, prefix = source.settings.rabbitmq or "", source.settings.prefix or OWN_PREFIX
        with RabbitMqSender(url, prefix=prefix, connect_seconds=CONNECT_SECONDS) as sender:
            headers = {
                name: str(value["StringValue"] if isinstance(value, dict) else value)
                for name, value in message.attributes.items()
            }
            times = {name: given[name] for name in ("delay", "due_at", "message_id")}
            result = sender.send(source.name, message.body, headers=headers, **times)
    due = result.due and f", due {result.due.isoformat(timespec='milliseconds')}"
    yield Outcome(message_id, DONE, f"sent ({result.route}){due or ''}")
