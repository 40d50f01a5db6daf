"""Gathering, for a store that takes thousands of messages in one call. Copies that wait for others stay in a
queue until the store has confirmed them.

The delay consumer's function is given ten copies at a time: it forwards them to the parking queue, many
in one message (`ForwardingRelay`). The `Parker` empties that queue into the store, and hands over what a
schedule has sent there. A worker gathers its copies in memory instead: its `Intake` keeps what is in hand
hidden from other consumers, and soon visible if the worker dies.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sqsdelay.core import limits
from sqsdelay.core.delay import Clock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, size_of, text_of
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage, as_lambda_record, from_lambda_event
from sqsdelay.core.schedule_input import COPY, record_of
from sqsdelay.errors import InvalidSetting, MalformedMessage, SqsDelayError
from sqsdelay.ports.queues import Failure, Queues
from sqsdelay.relaying.outcomes import Outcome, RelaySettings, Status
from sqsdelay.relaying.relay import Held, Move, Relay, always_held, in_tens

logger = logging.getLogger(__name__)

VERSION: Final = 1
GROUP_BYTES: Final = 64 * 1024
"""Of a group's body: SQS bills each 64 KiB of a message as one request (SQS pricing)."""
AT_ONCE: Final = 500
"""Copies of a round, where no store wants more at once: so that sends and deletes go in full tens."""
RECEIVING_SECONDS: Final = 60
"""Longest that a round receives: most of the time that its groups are hidden is left to settle them."""
SENDING_SECONDS: Final = limits.DELAY_QUEUE_VISIBILITY_SECONDS - 20
"""From its first receive, a round sends for no longer. One more call may take 18 s (`CALL_ATTEMPTS`), and
then others are given the same groups."""
MAX_BYTES: Final = 64 * 2**20
"""Of groups that are parked in one call: the copies in them take several times as much memory."""
BEATS: Final = 3
"""Extensions that may be tried before the visibility timeout ends."""
GATHERED_SECONDS: Final = 10.0
"""How long a copy may wait for others in memory. What is parked is due hours later."""
MAX_GATHERED: Final = 5_000
"""Copies of one worker: SQS lets 120,000 be in flight."""


def packed(copy: ReceivedMessage) -> str:
    """One copy as text; `group_of` makes a body of such texts."""
    return json.dumps(as_lambda_record(copy), ensure_ascii=False, separators=(",", ":"))


def group_of(packed_copies: Iterable[str]) -> str:
    """A body of copies that were `packed`."""
    return f'{{"version":{VERSION},"copies":[{",".join(packed_copies)}]}}'


def unpacked(group: ReceivedMessage) -> Sequence[ReceivedMessage]:
    """The copies of a group, or the one that a schedule sent, as it was received, received as often. They
    have no receive stamp: what a body claims, SQS did not tell. A group that cannot be read is one copy,
    which says so in ``unreadable``: it is rejected whole."""

    def copy(record: dict[str, Any]) -> ReceivedMessage:
        received = {**record, "receiptHandle": group.receipt_handle}
        found = from_lambda_event(received, received_at=group.received_at)
        return replace(found, receive_count=group.receive_count, first_receive_ms=None)

    try:
        if COPY in group.attributes:
            return [copy(record_of(group.body, text_of(group.attributes, COPY)))]
        found = json.loads(group.body)
        if found["version"] != VERSION:
            raise MalformedMessage(f"version {found['version']!r}; this sqsdelay reads {VERSION}")
        return [copy(record) for record in found["copies"]]
    except (ValueError, TypeError, KeyError, RecursionError, MalformedMessage) as error:
        return [replace(group, unreadable=f"not a group of copies: {error!r}"[:200])]


def forwards(endpoint: Endpoint, outcomes: Iterable[Outcome]) -> list[Move]:
    """Moves of these outcomes' copies to the parking queue: as few messages as hold them."""
    moves, texts = list[Move](), list[str]()
    for outcome in outcomes:
        texts.append(packed(outcome.copy))
        if not moves or size_of(group_of(texts), {}) > GROUP_BYTES:
            texts = texts[-1:]
            moves.append(Move(endpoint.parking_queue, OutgoingMessage("", {}), []))
        moves[-1].entry = OutgoingMessage(group_of(texts), {}, delay_seconds=0)
        moves[-1].settled.append(outcome)
    return moves


class ForwardingRelay(Relay):
    """A `Relay` that sends what is to be parked to the endpoint's parking queue, for a `Parker` to park
    many at once. Raises ConfigurationError: settings without ``parking``; SchemaMismatch: the store is of
    another version."""

    def __init__(self, queues: Queues, endpoint: Endpoint, settings: RelaySettings) -> None:
        super().__init__(queues, endpoint, settings)
        if self._parking is None:
            remedy = "a parking queue has no effect without parking; give both, or neither"
            raise InvalidSetting(remedy)
        self._parking.amendments(["-"])  # What is only forwarded does not ask the store.

    def _decide(self, copies: Sequence[ReceivedMessage]) -> Iterator[Move | Outcome]:
        """Far copies are forwarded, if they are small: for a larger one the parking queue would cost more
        than a store. Whoever parks them reads their amendments."""
        far, near = list[Outcome](), list[ReceivedMessage]()
        for copy in copies:
            if self.parks(copy) and size_of(group_of([packed(copy)]), {}) <= GROUP_BYTES:
                due_ms = getattr(self._read(copy), "due_ms", None)
                far.append(Outcome(copy, Status.FORWARDED, due_ms))
            else:
                near.append(copy)
        yield from super()._decide(near)
        yield from forwards(self._endpoint, far)


_Groups = list[tuple[ReceivedMessage, Sequence[ReceivedMessage]]]
"""Received messages of the parking queue, and the copies in each."""


class Parker(Relay):
    """Settles what the delay consumer has forwarded to an endpoint's parking queue, or a schedule has sent. A
    group is deleted only when the store has confirmed its copies, or their next queue has. Whoever is killed
    in between leaves it to the next, who settles it again."""

    _of_groups = True

    def __init__(self, queues: Queues, endpoint: Endpoint, settings: RelaySettings) -> None:
        # No hop is before it: it is handed over from as far as a message timer reaches.
        hop_seconds = limits.MAX_MESSAGE_TIMER_SECONDS
        super().__init__(queues, endpoint, replace(settings, hop_seconds=hop_seconds))
        self.source = endpoint.parking_queue

    def rounds(
        self, *, more: Held, held: Held = always_held, crowded: Callable[[], object] | None = None
    ) -> Iterator[list[Outcome]]:
        """Settle round after round, until the queue hands out nothing more. No round's copies are kept.
        ``more``: whether there is time to receive more, and to settle it. ``held``: whether the caller has
        time for one more call; a round has time of its own besides. ``crowded``: called once if a round
        leaves more in the queue, to send for help. Raises QueueMissing, QueueUnavailable: nothing more could
        be received."""
        url = self._queues.url(self.source)
        emptied: bool | None = False
        while more() and not emptied:
            may_send = self._within(SENDING_SECONDS, held)
            groups, emptied = self._receive(url, self._within(RECEIVING_SECONDS, more))
            yield self._settle(url, groups, may_send)
            del groups
            if crowded is not None and emptied is False:
                crowded()
                crowded = None

    def _within(self, seconds: int, also: Held) -> Held:
        clock = self._queues.broker_clock.local
        until = clock.monotonic() + seconds
        return lambda: clock.monotonic() < until and also()

    def _receive(self, url: str, more: Held) -> tuple[_Groups, bool | None]:
        """The groups of a round, and whether the queue has no more; None where it cannot be asked now."""
        groups, copies, size = _Groups(), 0, 0
        while copies < (self.stored_at_once or AT_ONCE) and size < MAX_BYTES and more():
            try:
                received = self._queues.receive_batch(
                    url, wait_seconds=1, visibility_seconds=limits.DELAY_QUEUE_VISIBILITY_SECONDS
                )
            except SqsDelayError:
                if not groups:
                    raise
                return groups, None  # Not settled, they would be hidden until their time is up.
            if not received:
                return groups, True
            groups += [(message, unpacked(message)) for message in received]
            copies = sum(len(found) for _, found in groups)
            size = sum(len(message.body) for message, _ in groups)
        return groups, False

    def _settle(self, url: str, groups: _Groups, held: Held) -> list[Outcome]:
        # One that came twice, as a schedule may fire twice, is sent on once.
        first = {_one(copy): copy for _, found in reversed(groups) for copy in reversed(found)}
        outcomes = self.process(list(first.values())[::-1], delete=False, held=held)
        of = {_one(outcome.copy): outcome for outcome in outcomes}
        done: list[ReceivedMessage] = []
        for message, copies in groups:
            failed = [each for each in (of[_one(copy)] for copy in copies) if not each.settled]
            # A group may go once its copies are settled, and those that are not are in another.
            if not failed or (
                len(failed) < len(copies)
                and held()
                and not any(self._send(forwards(self._endpoint, failed)))
            ):
                done.append(message)
        for failure in filter(None, in_tens(partial(self._queues.delete_batch, url), done)):
            # Parked again, a message is one when its slot's objects are merged.
            logger.warning("a group is not deleted: %s", one_line(failure.error))
        return outcomes


def _one(copy: ReceivedMessage) -> object:
    """The same for the copies of a schedule, which have no id of SQS's but one of their own to know them by;
    otherwise each is another."""
    return (not copy.sqs_message_id and copy.deduplication_id) or id(copy)


@dataclass(eq=False, slots=True)
class InHand:
    """One received batch, or what is left of it; times are local monotonic seconds. ``hidden_until`` is when
    others may receive it, ``touched_at`` when work on it last went on. ``gathered`` bytes wait for others, to
    be parked with them."""

    copies: Sequence[ReceivedMessage]
    received_at: float
    hidden_until: float
    touched_at: float
    gathered: int = 0


@dataclass(eq=False)
class Intake:
    """Receives from a relay's queue for a worker, and keeps hidden what the relay works on. Thread-safe.
    Received copies stay hidden for ``seconds``, 1 to 180; for longer only while `extend` is called, and never
    for more than 180 s in all: a second attempt on a copy must still deduplicate against the first. Copies
    for a store that takes groups are gathered from all receivers."""

    queues: Queues
    relay: Relay
    clock: Clock
    seconds: int = limits.WORKER_VISIBILITY_SECONDS

    def __post_init__(self) -> None:
        self.most = self.relay.stored_at_once
        self.beat_seconds = self.seconds / BEATS
        """How often `extend` is to be called."""
        self._url = ""
        self._in_hand: list[InHand] = []
        self._lock = threading.RLock()

    def receive(self, *, wait_seconds: int) -> InHand:
        """Receive a batch, which may be empty; `settle` or `release` ends the work on it. Raises
        QueueMissing, QueueUnavailable."""
        self._url = self.queues.url(self.relay.source)
        copies = self.queues.receive_batch(
            self._url, wait_seconds=wait_seconds, visibility_seconds=self.seconds
        )
        now = self.clock.monotonic()
        batch = InHand(copies, now, now + self.seconds, now)
        if copies:
            with self._lock:
                self._in_hand.append(batch)
        return batch

    def held(self, *batches: InHand) -> bool:
        """Whether no other consumer can have received them yet. To ask counts as work going on."""
        now = self.clock.monotonic()
        for batch in batches:
            batch.touched_at = now
        return all(now < batch.hidden_until for batch in batches)

    def settle(self, batch: InHand, *, gather: bool = False) -> list[Outcome]:
        """Have the relay work on a batch, but for what is gathered."""
        far, near = list[ReceivedMessage](), list[ReceivedMessage]()
        for copy in batch.copies:
            (far if gather and self.most and self.relay.parks(copy) else near).append(copy)
        left = False
        try:
            outcomes = self.relay.process(near, held=lambda: self.held(batch)) if near else []
            if left := bool(far):
                batch.copies, batch.gathered = far, sum(len(copy.body) for copy in far)
            return outcomes
        finally:
            # Another receiver may have begun to park what is left.
            if not left:
                self._done(batch)

    def park(self, *, only_if_full: bool = False) -> list[Outcome]:
        """Park all that is gathered in one call, now or if it is time to; one of the receivers does it."""
        most = min(self.most or 0, MAX_GATHERED)
        with self._lock:
            batches = [batch for batch in self._in_hand if batch.gathered]
            count, size = sum(len(b.copies) for b in batches), sum(b.gathered for b in batches)
            full = count >= most or size >= MAX_BYTES or self.seconds_left() == 0
            if not count or (only_if_full and not full):
                return []
            for batch in batches:
                batch.gathered = 0
        # Parked by two, a message would be twice in a store that cannot tell.
        ours = [batch for batch in batches if self.held(batch)]
        copies = [copy for batch in ours for copy in batch.copies]
        try:
            return self.relay.process(copies, held=lambda: self.held(*ours))
        finally:
            self._done(*batches)

    def seconds_left(self) -> float | None:
        """How long more may be waited for; None while nothing is gathered."""
        with self._lock:
            times = [b.received_at + GATHERED_SECONDS for b in self._in_hand if b.gathered]
        return max(0.0, min(times) - self.clock.monotonic()) if times else None

    def release(self, batch: InHand) -> None:
        """Let others have at once what nobody here will work on."""
        self._done(batch)
        if batch.copies:
            self._hide(batch, 0)

    def last_touched(self) -> float | None:
        """When work on any batch last went on; None when none is in hand."""
        with self._lock:
            return max((batch.touched_at for batch in self._in_hand), default=None)

    def extend(self) -> None:
        """Keep hidden, for as long again, what is still worked on and soon visible."""
        with self._lock:
            batches = list(self._in_hand)
        for batch in batches:
            now = self.clock.monotonic()
            most = batch.received_at + limits.DELAY_QUEUE_VISIBILITY_SECONDS - now
            seconds = int(min(self.seconds, most))
            due = batch.hidden_until - now < self.seconds - self.beat_seconds / 2
            if not (due and now < batch.hidden_until < now + seconds):
                continue
            hidden = self._hide(batch, seconds)
            if None in hidden:
                # Those that failed are deleted by now, or are received elsewhere when their time is up.
                batch.hidden_until = now + seconds
            else:
                told = "copies in hand are hidden no longer and come back elsewhere: %s"
                logger.warning(told, one_line(hidden[0].error if hidden[0] else ""))

    def _hide(self, batch: InHand, seconds: int) -> Sequence[Failure | None]:
        entries = [(copy, seconds) for copy in batch.copies]
        return self.queues.hide_batch(self._url, entries)

    def _done(self, *batches: InHand) -> None:
        """Their copies are deleted, or were told when to come back."""
        gone = set(batches)
        with self._lock:
            self._in_hand = [each for each in self._in_hand if each not in gone]
