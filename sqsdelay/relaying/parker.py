"""What gathers copies for a store that takes thousands of messages in one call, and the parking queue.

A worker gathers its copies in memory (`Gathering`). The delay consumer's function is given ten at a time: it
forwards them to the parking queue, many in one message (`ForwardingRelay`). The `Parker` empties that queue
into the store; what a schedule has sent there is handed over.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sqsdelay import limits
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, full_batches, size_of, text_of
from sqsdelay.core.readable import one_line
from sqsdelay.core.received_message import ReceivedMessage, as_lambda_record, from_lambda_event
from sqsdelay.core.schedule_input import COPY, record_of
from sqsdelay.errors import InvalidSetting, MalformedMessage, SqsDelayError
from sqsdelay.ports.queues import Failure, Queues
from sqsdelay.relaying.outcomes import Outcome, RelaySettings, Status
from sqsdelay.relaying.relay import Held, Move, Mover, Relay, in_tens
from sqsdelay.relaying.visibility import InHand, Visibility

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

GATHERED_SECONDS: Final = 10.0
"""How long a copy may wait for others in memory. What is parked is due hours later."""

MAX_GATHERED: Final = 5_000
"""Copies of one worker: SQS lets 120,000 be in flight."""


class Gathering:
    """What a worker's receivers have gathered for a store that takes groups. Thread-safe.

    Copies stay in their queue until the store has confirmed them.
    """

    def __init__(self, mover: Mover, visibility: Visibility) -> None:
        self._mover = mover
        self.most = mover.stored_at_once if isinstance(mover, Relay) else None
        self._visibility = visibility
        self._batches: list[InHand] = []
        self._lock = threading.RLock()

    def seconds_left(self) -> float | None:
        """How long more may be waited for; None while nothing is gathered."""
        with self._lock:
            if not self._batches:
                return None
            return max(0.0, GATHERED_SECONDS - self._batches[0].age())

    def keep(self, batch: InHand) -> InHand:
        """Keep of a received batch what is to be parked; the rest, which may be none."""
        if self.most is None or not isinstance(self._mover, Relay):
            return batch
        far = [copy for copy in batch.copies if self._mover.parks(copy)]
        if not far:
            return batch
        kept, rest = self._visibility.divide(batch, far)
        with self._lock:
            self._batches.append(kept)
        return rest

    def park(self, *, only_if_full: bool = False) -> list[Outcome]:
        """Park all of it in one call, now or if it is time to; one of the receivers does it."""
        most = min(self.most or 0, MAX_GATHERED)
        with self._lock:
            count = sum(len(batch.copies) for batch in self._batches)
            if not count or (only_if_full and count < most and self.seconds_left() != 0):
                return []
            batches, self._batches = self._batches, []
        # Parked by two, a message would be twice in a store that cannot tell.
        ours = [batch for batch in batches if batch.held()]
        copies = [copy for batch in ours for copy in batch.copies]
        try:
            # Each is asked, since that counts as work going on.
            return self._mover.process(copies, held=lambda: all(list(map(InHand.held, ours))))
        finally:
            for batch in batches:
                self._visibility.done(batch)


def packed(copy: ReceivedMessage) -> str:
    """One copy as text; `group_of` makes a body of such texts."""
    return json.dumps(as_lambda_record(copy), ensure_ascii=False, separators=(",", ":"))


def group_of(packed_copies: Iterable[str]) -> str:
    """A body of copies that were `packed`."""
    return f'{{"version":{VERSION},"copies":[{",".join(packed_copies)}]}}'


def unpacked(group: ReceivedMessage) -> Sequence[ReceivedMessage]:
    """The copies of a group, or the one that a schedule sent, as it was received, received as often.

    A group that cannot be read is one copy, which says so in ``unreadable``: it is rejected whole.
    """

    def copy(record: dict[str, Any]) -> ReceivedMessage:
        received = {**record, "receiptHandle": group.receipt_handle}
        found = from_lambda_event(received, received_at=group.received_at)
        return replace(found, receive_count=group.receive_count)

    try:
        if COPY in group.attributes:
            return [copy(record_of(group.body, text_of(group.attributes, COPY)))]
        found = json.loads(group.body)
        if found["version"] != VERSION:
            raise MalformedMessage(f"version {found['version']!r}; this sqsdelay reads {VERSION}")
        return [copy(record) for record in found["copies"]]
    except (ValueError, TypeError, KeyError, RecursionError, MalformedMessage) as error:
        return [replace(group, unreadable=f"not a group of copies: {error!r}"[:200])]


_FRAME_BYTES: Final = len(group_of(()))


def fits_a_group(copy: ReceivedMessage) -> bool:
    """For a larger copy the parking queue would cost more than a store."""
    return _FRAME_BYTES + size_of(packed(copy), {}) <= GROUP_BYTES


def forward(
    queues: Queues, endpoint: Endpoint, copies: Sequence[ReceivedMessage]
) -> list[Failure | None]:
    """Send copies to the parking queue in as few groups as hold them; None per copy that it has."""
    try:
        url = queues.url(endpoint.parking_queue)
    except SqsDelayError as error:
        return [Failure(type(error).__name__, error, transient=True)] * len(copies)
    groups, size = list[list[str]](), 0
    for text in map(packed, copies):
        more = size_of(text, {}) + 1
        if not groups or size + more > GROUP_BYTES:
            groups.append([])
            size = _FRAME_BYTES
        groups[-1].append(text)
        size += more
    answers: list[Failure | None] = []
    bodies = [(len(group), group_of(group)) for group in groups]
    for batch in full_batches(bodies, target=lambda _: url, size=lambda g: size_of(g[1], {})):
        entries = [
            OutgoingMessage(body, {}, size_of(body, {}), delay_seconds=0) for _, body in batch
        ]
        for (count, _), sent in zip(batch, queues.send_batch(url, entries), strict=True):
            answers += [sent if isinstance(sent, Failure) else None] * count
    return answers


class ForwardingRelay(Relay):
    """A `Relay` that sends what is to be parked to the endpoint's parking queue, for a `Parker` to park
    many at once.

    Raises:
        ConfigurationError: settings without ``parking``.
        SchemaMismatch: the store is of another version.
    """

    def __init__(self, queues: Queues, endpoint: Endpoint, settings: RelaySettings) -> None:
        super().__init__(queues, endpoint, settings)
        if self._parking is None:
            raise InvalidSetting(
                "a parking queue has no effect without parking; give both, or neither"
            )
        self._parking.amendments(["-"])  # What is only forwarded does not ask the store.

    def _decide(self, copies: Sequence[ReceivedMessage]) -> list[Move | Outcome]:
        """Far copies are forwarded, if they are small. Whoever parks them reads their amendments."""
        far = [copy for copy in copies if self.parks(copy) and fits_a_group(copy)]
        gone = set(map(id, far))
        # First, since nothing may be sent beside a store of another version, which is found out here.
        others = super()._decide([copy for copy in copies if id(copy) not in gone])
        answers = forward(self._queues, self._endpoint, far) if far else []
        forwarded = [
            Outcome(copy, Status.FORWARDED, getattr(self._read(copy), "due_ms", None))
            if failure is None
            else self._failed(copy, str(failure.error))
            for copy, failure in zip(far, answers, strict=True)
        ]
        return [*forwarded, *others]


_Groups = list[tuple[ReceivedMessage, Sequence[ReceivedMessage]]]
"""Received messages of the parking queue, and the copies in each."""


class Parker:
    """Settles what the delay consumer has forwarded to an endpoint's parking queue, or a schedule has sent.

    A group is deleted only when the store has confirmed its copies, or their next queue has. Whoever is
    killed in between leaves it to the next, who settles it again.

    Args:
        queues: the queue service.
        settings: how to relay what cannot be parked any more; with ``parking``.
    """

    def __init__(self, queues: Queues, endpoint: Endpoint, settings: RelaySettings) -> None:
        self._queues = queues
        self._endpoint = endpoint
        # No hop is before it: it is handed over from as far as a message timer reaches.
        settings = replace(settings, hop_seconds=limits.MAX_MESSAGE_TIMER_SECONDS)
        self._relay = Relay(queues, endpoint, settings)
        self._relay.source = endpoint.parking_queue
        self._most = self._relay.stored_at_once or AT_ONCE

    def rounds(
        self, *, more: Held, held: Held = lambda: True, crowded: Callable[[], object] | None = None
    ) -> Iterator[list[Outcome]]:
        """Settle round after round, until the queue hands out nothing more. No round's copies are kept.

        Args:
            more: whether there is time to receive more, and to settle it.
            held: whether the caller has time for one more call. A round has time of its own besides.
            crowded: called once if a round leaves more in the queue, to send for help.

        Yields:
            An outcome for each copy of a round.

        Raises:
            QueueMissing, QueueUnavailable: nothing more could be received.
        """
        url = self._queues.url(self._relay.source)
        emptied = False
        while more() and not emptied:
            may_send = self._within(SENDING_SECONDS, held)
            groups, emptied = self._receive(url, self._within(RECEIVING_SECONDS, more))
            yield self._settle(url, groups, may_send)
            del groups
            if crowded is not None and not emptied:
                crowded()
                crowded = None

    def _within(self, seconds: int, also: Held) -> Held:
        clock = self._queues.broker_clock.local
        until = clock.monotonic() + seconds
        return lambda: clock.monotonic() < until and also()

    def _receive(self, url: str, more: Held) -> tuple[_Groups, bool]:
        """The groups of a round, and whether the queue has no more."""
        groups: _Groups = []
        copies = size = 0
        while copies < self._most and size < MAX_BYTES and more():
            received = self._queues.receive_batch(
                url, wait_seconds=1, visibility_seconds=limits.DELAY_QUEUE_VISIBILITY_SECONDS
            )
            if not received:
                return groups, True
            groups += [(message, unpacked(message)) for message in received]
            copies = sum(len(found) for _, found in groups)
            size = sum(len(message.body) for message, _ in groups)
        return groups, False

    def _settle(self, url: str, groups: _Groups, held: Held) -> list[Outcome]:
        # One that came twice, as a schedule may fire twice, is sent on once.
        first = {_one(copy): copy for _, found in reversed(groups) for copy in reversed(found)}
        outcomes = self._relay.process(list(first.values())[::-1], delete=False, held=held)
        of = {_one(outcome.copy): outcome for outcome in outcomes}
        done: list[ReceivedMessage] = []
        for message, copies in groups:
            failed = [copy for copy in copies if not of[_one(copy)].settled]
            # A group may go once its copies are settled, and those that are not are in another.
            if not failed or (
                len(failed) < len(copies)
                and held()
                and not any(forward(self._queues, self._endpoint, failed))
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
