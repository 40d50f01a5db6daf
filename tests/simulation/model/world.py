"""A whole deployment in virtual time: senders, workers, dispatchers, queues and a store, and a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sqsdelay.core.delay import delay_ms, due_at_ms
from sqsdelay.core.limits import DEDUPLICATION_INTERVAL_SECONDS
from sqsdelay.core.message import MESSAGE_ID, Attribute, string, text_of
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import SqsDelayError
from sqsdelay.parking.parking import Change, ParkingSettings
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.relaying.outcomes import RelaySettings
from sqsdelay.relaying.relay import DueRelay, Relay
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender, Route
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.testing import ManualClock
from tests.simulation.model.faults import Breaker, BreakingQueues, BreakingStore, Fault, Sent
from tests.simulation.model.promises import Promise
from tests.simulation.virtual_party import Killed

WORKERS: Final = 2
ATTRIBUTES: Final[dict[str, Attribute]] = {
    "kind": string("reminder"),
    "raw": {"DataType": "Binary.gzip", "BinaryValue": b"\x00\xff"},
}

KNOWN_TO_MS: Final = 1000
"""An HTTP ``Date`` tells the broker's time to the second, rounded down."""

_PAGE: Final = (Path(__file__).parents[3] / "docs/how-it-works.md").read_text()
STATES: Final = _PAGE.partition("## The states of a message")[2]


def drawn(page: str) -> set[tuple[str, str]]:
    """From where to where the table of `docs/how-it-works.md` lets a message move."""
    moves: set[tuple[str, str]] = set()
    for cell in re.findall(r"^\| `[a-z-]+` \| ([^|]+) \|", page, re.MULTILINE):
        for clause in cell.split("; "):
            before, after = (places.split(", ") for places in clause.split(" → "))
            moves |= {(place, to) for place in before for to in after}
    return moves


MOVES: Final = drawn(STATES)

HARMLESS: Final = frozenset({Fault.SEND_REFUSED, Fault.SEND_HALF_REFUSED, Fault.STORE_REFUSED})
"""After these nobody can hold anything twice; every other fault is a documented cause of duplicates
for the messages that were being moved at that moment."""


class World:
    """An endpoint with everything that serves it; each operation is judged as it happens.

    Args:
        endpoint: its name; a FIFO one has a due relay.
        make_store: a store on the clock.
        park_after_seconds: as for senders and consumers.
        error_ms: how far every machine's wall clock is from the broker's.
    """

    def __init__(
        self,
        endpoint: str,
        make_store: Callable[[ManualClock], DelayedMessageStore],
        *,
        park_after_seconds: int,
        error_ms: int,
    ) -> None:
        self.clock = ManualClock(error_ms=error_ms)
        self.breaker = Breaker()
        self.promises: dict[str, Promise] = {}
        self.arrived: list[Promise] = []
        self.wrong: list[str] = []
        self.queues = BreakingQueues(self.clock, self.breaker, self._on_sent)
        self.endpoint = self.queues.create_endpoint(endpoint)
        self.store: Any = BreakingStore(make_store(self.clock), self.breaker, self._on_stored)
        self.store.set_up()
        self._park_after = park_after_seconds
        self._touched: set[str] = set()
        self._before: dict[str, set[str]] = {}
        self._homes = {
            self.endpoint.delay_queue.name: "hopping",
            self.endpoint.due_queue.name: "due queue",
            self.endpoint.queue.name: "destination",
            self.endpoint.error_queue.name: "error queue",
        }
        self._no_new_hop: set[str] = set()
        self._later: list[Callable[[bool], None]] = []
        self._in_hand: dict[str, str] = {}
        self._requeued: dict[str, int] = {}
        self._outboxes: list[SqsOutbox] = []
        self.sender = QueueSender(
            self.queues, SenderSettings(parking=ParkingSettings(self.store, park_after_seconds))
        )
        self.sender_without_store = QueueSender(self.queues, SenderSettings(idempotent=True))
        self.relays: list[Relay] = [self._relay() for _ in range(WORKERS)]
        self.due_relays: list[Relay] = [self._due_relay() for _ in range(WORKERS)]
        self.dispatchers = [self._dispatcher() for _ in range(WORKERS)]

    def close(self) -> None:
        """End what the world has started."""
        self.store.close()
        for outbox in self._outboxes:
            outbox.close()

    def _relay(self) -> Relay:
        return Relay(
            self.queues,
            self.endpoint,
            RelaySettings(parking=ParkingSettings(self.store, self._park_after)),
        )

    def _due_relay(self) -> DueRelay:
        return DueRelay(self.queues, self.endpoint)

    def _dispatcher(self) -> Dispatcher:
        outbox = SqsOutbox(self.queues, self.endpoint, concurrency=1)
        self._outboxes.append(outbox)
        return Dispatcher(
            self.store,
            outbox,
            settings=DispatchSettings(batch_size=10),
            on_critical=lambda _: None,
            clock=self.clock,
        )

    # What people do.

    def send(
        self, message_id: str, body: str, group: str | None, when: float | datetime, *, parks: bool
    ) -> None:
        """Send a message, or send it again; ``parks``: from a sender that has the store."""
        promise = self.promises.setdefault(
            message_id, Promise(message_id, body, ATTRIBUTES, group, parks, set())
        )
        promise.sends += 1
        delay = None if isinstance(when, datetime) else when
        due_at = when if isinstance(when, datetime) else None
        exact_ms = self.clock.true_ms + delay_ms(delay or 0)
        promise.dues.add(exact_ms if due_at is None else due_at_ms(due_at))
        result = None
        with self._operation({message_id}, sends=True), suppress(SqsDelayError):
            sender = self.sender if parks else self.sender_without_store
            result = sender.send(
                self.endpoint.name,
                body,
                delay=delay,
                due_at=due_at,
                attributes=ATTRIBUTES,
                message_id=message_id,
                message_group_id=group,
            )
        if result is not None:
            promise.required = True
        if due_at is None and (parks if result is None else result.route is Route.STORE):
            # A parked message's delay counts from the latest that the broker's clock may have read.
            promise.dues = {exact_ms, exact_ms + KNOWN_TO_MS}

    def cancel(self, message_id: str) -> None:
        """Cancel a message."""
        with self._operation({message_id}):
            self._cancel(message_id, meanwhile=False)

    def reschedule(self, message_id: str, due_at: datetime) -> None:
        """Move a message."""
        with self._operation({message_id}):
            self._reschedule(message_id, due_at, meanwhile=False)

    def meanwhile(self, message_id: str, due_at: datetime | None, *, after_calls: int) -> None:
        """Cancel or move a message in the midst of whatever runs next."""

        def change() -> None:
            with suppress(Killed):  # who changes it dies of it, not who works on it
                if due_at is None:
                    self._cancel(message_id, meanwhile=True)
                else:
                    self._reschedule(message_id, due_at, meanwhile=True)

        self.breaker.happen_meanwhile(change, after_calls=after_calls)

    def _cancel(self, message_id: str, *, meanwhile: bool) -> None:
        promise = self.promises[message_id]
        promise.changed = True
        waits = self._copies(message_id) > 0
        try:
            change = self.sender.cancel(self.endpoint.name, message_id)
        except (SqsDelayError, Killed) as error:
            promise.required = False
            if isinstance(error, Killed):
                raise
            return
        if change is Change.DONE:
            self._check_not_gone(promise, change)
            promise.required, promise.forbidden = False, True
        elif change is Change.REQUESTED and meanwhile:
            promise.required = False  # whoever has it in hand may see the amendment, or not
            self._later.append(lambda broken: self._cancelled_meanwhile(promise, broken))
        elif change is Change.REQUESTED and waits:
            promise.required, promise.forbidden = False, True

    def _reschedule(self, message_id: str, due_at: datetime, *, meanwhile: bool) -> None:
        promise, due_ms = self.promises[message_id], due_at_ms(due_at)
        promise.changed = True
        waits = self._copies(message_id) > 0
        try:
            change = self.sender.reschedule(self.endpoint.name, message_id, due_at=due_at)
        except (SqsDelayError, Killed) as error:
            promise.may_move(due_ms)
            if isinstance(error, Killed):
                raise
            return
        if change is Change.DONE:
            self._check_not_gone(promise, change)
            promise.move(due_ms)
        elif change is Change.REQUESTED and waits and not meanwhile:
            promise.move(due_ms)
        elif waits or meanwhile:
            promise.may_move(due_ms)

    def _check_not_gone(self, promise: Promise, change: Change) -> None:
        if promise.handed_over and not promise.excuses:
            self.wrong.append(f"{promise.message_id} is {change}, though it was handed over")

    def _cancelled_meanwhile(self, promise: Promise, broken: bool) -> None:
        """An amendment left while somebody had the message in hand holds for whatever still waits."""
        message_id = promise.message_id
        if self._copies(message_id):
            promise.required, promise.forbidden = False, True
        elif self._stored(message_id) and not broken:
            self.wrong.append(f"{message_id} was to be cancelled, and is parked all the same")

    # What the processes do.

    def relay(self, worker: int, *, as_function: bool = False) -> None:
        """One receive of a worker, or one invocation of the function."""
        self._serve(self.relays, worker, self._relay, as_function=as_function)

    def due_relay(self, worker: int) -> None:
        """One receive of a FIFO endpoint's due queue."""
        self._serve(self.due_relays, worker, self._due_relay, as_function=False)

    def _serve(
        self, movers: list[Relay], worker: int, make: Callable[[], Relay], *, as_function: bool
    ) -> None:
        mover = movers[worker]
        url = self.queues.url(mover.source)
        copies = self.queues.receive_batch(url, wait_seconds=0)
        times = Counter(copy.message_id for copy in copies)
        # Two copies of one message in one batch cannot be told apart by what is sent for them.
        copies_alone = [copy for copy in copies if times[copy.message_id] == 1]
        self._in_hand = {copy.message_id: copy.sqs_message_id for copy in copies_alone}
        self._no_new_hop = self._to_deduplicate(copies_alone)
        with self._operation(set(), killed=lambda: movers.__setitem__(worker, make())):
            outcomes = mover.process(copies, delete=not as_function)
            if as_function:
                settled = [outcome.copy for outcome in outcomes if outcome.settled]
                self.queues.delete_batch(url, settled)
        self._in_hand, self._no_new_hop = {}, set()

    def _to_deduplicate(self, copies: list[ReceivedMessage]) -> set[str]:
        """Copies that were requeued less than 5 minutes ago, and came back all the same."""
        interval_ms = DEDUPLICATION_INTERVAL_SECONDS * 1000
        since_ms = {
            copy.message_id: self.clock.true_ms - self._requeued.get(copy.sqs_message_id, 0)
            for copy in copies
        }
        return {message_id for message_id, ms in since_ms.items() if ms < interval_ms}

    def dispatch(self, worker: int) -> None:
        """One claim of a dispatcher."""
        with self._operation(
            set(), killed=lambda: self.dispatchers.__setitem__(worker, self._dispatcher())
        ):
            try:
                self.dispatchers[worker].dispatch()
            except SqsDelayError:
                return

    def drain(self) -> None:
        """Nothing breaks any more: serve until everything has arrived."""
        self.breaker.fault, self.store.away = None, False
        for _ in range(3000):
            for worker in range(WORKERS):
                self.relay(worker)
                self.dispatch(worker)
                if self.endpoint.fifo:
                    self.due_relay(worker)
            if self.wrong or not self._waiting():
                return
            self.clock.advance(max(1.0, min(self.seconds_to_next(), 43_200.0)))
        self.wrong.append("what waits does not become less")

    def _waiting(self) -> int:
        queues = [self.endpoint.delay_queue.name]
        queues += [self.endpoint.due_queue.name] if self.endpoint.fifo else []
        return int(self.store.pending_count()) + sum(map(self.queues.count, queues))

    def waiting_ids(self) -> list[str]:
        """The messages that a change can still reach."""
        return [i for i in sorted(self.promises) if self._copies(i) or self._stored(i)]

    def seconds_to_next(self) -> float:
        """Until a queue shows something, or the dispatcher has something to release."""
        sources = [self.endpoint.delay_queue.name]
        sources += [self.endpoint.due_queue.name] if self.endpoint.fifo else []
        times = [t for name in sources if (t := self.queues.next_visible_in(name)) is not None]
        due_ms = self.store.next_due_ms()
        if due_ms is not None:
            times.append(due_ms - 900_000)
        elif self.store.pending_count():
            times.append(self.clock.true_ms + 30_000)  # leased by a dead dispatcher
        return (min(times) - self.clock.true_ms) / 1000 if times else 1.0

    def judge_end(self) -> None:
        """Everything has been served: what is missing?"""
        for promise in self.promises.values():
            self.wrong += promise.judge_end()
        if self.queues.count(self.endpoint.error_queue.name):
            self.wrong.append("a message was rejected")

    # How it is judged.

    @contextmanager
    def _operation(
        self, concerned: set[str], *, sends: bool = False, killed: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        self._touched, self._later = set(concerned), []
        self._before = {message_id: self._where(message_id) for message_id in self.promises}
        if sends:
            for message_id in concerned:
                self._before[message_id].add("new")
        self.store.amendments_unread = False
        armed = self.breaker.fault
        try:
            yield
        except Killed:
            killed()
        self.breaker.forget_meanwhile()
        fired = armed if armed is not None and self.breaker.fault is None else None
        for message_id in self._touched:
            promise = self.promises[message_id]
            if fired is not None and fired not in HARMLESS:
                promise.excuses.add(fired.value)
            elif self._places(message_id) > 1 and not promise.excuses:
                self.wrong.append(f"{message_id} waits in two places, and nothing had broken")
        for judge in self._later:
            judge(fired is not None)

    def _places(self, message_id: str) -> int:
        return (
            self._copies(message_id)
            + self._stored(message_id)
            + bool(self.promises[message_id].handed_over)
        )

    def _where(self, message_id: str) -> set[str]:
        places = {"hopping"} if self._copies(message_id) else set()
        if self._stored(message_id):
            places.add("parked")
        due = self.queues.held(self.endpoint.due_queue.name) if self.endpoint.fifo else ()
        if any(text_of(held.message.attributes, MESSAGE_ID) == message_id for held in due):
            places.add("due queue")
        return places

    def _reaches(self, message_id: str, to: str) -> None:
        """A message has a new home: one to which the page's table leads from where it was."""
        before = self._before[message_id]
        if not any((place, to) in MOVES for place in before):
            was = ", ".join(sorted(before)) or "nowhere"
            self.wrong.append(f"{message_id} was {was} and is {to}: not in docs/how-it-works.md")
        before.add(to)

    def _copies(self, message_id: str) -> int:
        return self.queues.copies(self.endpoint.delay_queue.name, message_id)

    def _stored(self, message_id: str) -> bool:
        return self.store.inner.find(message_id) is not None

    def _on_stored(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            self._touched.add(message.message_id)
            self._reaches(message.message_id, "parked")

    def _on_sent(self, sent: Sent) -> None:
        """A queue took a message: whichever process sent it, this is what counts."""
        entry, queue = sent.entry, sent.queue
        if queue == self.endpoint.error_queue.name:
            return
        in_delay_queue = queue == self.endpoint.delay_queue.name
        message_id = entry.group_id if in_delay_queue else text_of(entry.attributes, MESSAGE_ID)
        promise = self.promises.get(message_id or "")
        if promise is None or message_id is None:
            self.wrong.append(f"nobody sent {message_id!r}, which arrives in {queue}")
            return
        self._touched.add(message_id)
        if not sent.new:
            return
        self._reaches(message_id, self._homes[queue])
        if in_delay_queue:
            if message_id in self._no_new_hop:
                self.wrong.append(f"{message_id} hops twice within the deduplication interval")
            if message_id in self._in_hand:
                self._requeued[self._in_hand[message_id]] = self.clock.true_ms
            return
        if queue == self.endpoint.hand_over_queue.name or promise.handed_over == 0:
            self.wrong += promise.judge_hand_over(
                now_ms=self.clock.true_ms,
                visible_ms=self.clock.true_ms + (entry.delay_seconds or 0) * 1000,
                amendments_read=not self.store.amendments_unread,
            )
        if queue == self.endpoint.queue.name:
            self._judge_delivery(promise, sent)

    def _judge_delivery(self, promise: Promise, sent: Sent) -> None:
        entry = sent.entry
        self.wrong += promise.judge_content(entry.body, entry.attributes, entry.group_id)
        if self.endpoint.fifo and self.clock.true_ms < (promise.visible_ms or 0):
            self.wrong.append(f"{promise.message_id} left the due queue too early")
        if promise.delivered and not promise.excuses:
            self.wrong.append(f"{promise.message_id} is delivered twice, and nothing had broken")
        promise.delivered += 1
        self.arrived.append(promise)
