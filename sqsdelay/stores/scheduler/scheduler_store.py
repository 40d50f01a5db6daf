"""`SchedulerStore`: each parked message is a one-time schedule of EventBridge Scheduler."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqsdelay import errors
from sqsdelay.core import schedule_input, stored_message
from sqsdelay.core.delay import Clock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.schedule_input import name_of
from sqsdelay.core.stored_message import Amendment, StoredMessage, latest_amendments
from sqsdelay.errors import InvalidMessage, MessageTooLarge, StoreError, StoreUnavailable
from sqsdelay.ports.stores import ParkingPlace
from sqsdelay.stores.calls import check_no_transaction
from sqsdelay.stores.scheduler.group import Group, Schedule, Shape, fires_at
from sqsdelay.stores.shared import Pages, new_once, tells_due

_MOVE_SECONDS: Final = 60
"""How old what a mover has read may be when it writes: UpdateSchedule has no condition."""

_MOVED_BY_NOW_MS: Final = 600_000
"""After so long no mover writes any more who read a message before it was cancelled: AWS refuses a request
that was signed more than five minutes ago. Source: AWS General Reference, "Signature Version 4"."""

CLOCKS_APART_MS: Final = 2_000
"""How far two readings of the service's clock may lie apart: each is known to the second."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message's schedule, read."""

    name: str
    message: StoredMessage
    kept_since_ms: int
    read_at: float


class SchedulerStore(Pages, ParkingPlace):
    """Messages of one endpoint as one-time schedules: a place to park in that needs no dispatcher.

    A schedule fires early, into the endpoint's parking queue, which is emptied every five minutes; message
    timers make it exact to the second. What has fired is no longer here: it is cancelled and moved by an
    amendment, as any message in the delay queue.

    A page of `pending` reads every schedule: a GetSchedule call for each message, a ListSchedules call for
    each hundred. The calls are free, and limited to some thousand a second: for people, not for loops.

    Args:
        group: the schedule group; `set_up` creates it.
        role_arn: the role that EventBridge Scheduler assumes; it may send to the parking queue and to
            the error queue.
        endpoint: whose messages these are: a queue name, URL or ARN. Where it does not say the account
            or region, they are the role's and the client's.
        client: a boto3 EventBridge Scheduler client; made from the default session when left out.
        clock: this machine's; the service's own time is read from its answers.

    Raises:
        InvalidEndpoint, ConfigurationError
    """

    soonest_seconds: Final = schedule_input.SOONEST_SECONDS
    fires: Final = True

    def __init__(
        self,
        group: str,
        *,
        role_arn: str,
        endpoint: str,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = Endpoint.parse(endpoint)
        of = self._endpoint
        self._group = Group(group, role_arn=role_arn, endpoint=of, client=client, clock=clock)
        self._queue_url, self.client = self._group.queue_url, self._group.client
        # A message has its second name where one of its id was cancelled a moment ago.
        self._names, self._second_names, self._second_used, self._amendments = (
            schedule_input.prefix_of(self._queue_url, kind) for kind in "mnsa"
        )

    def set_up(self) -> None:
        """Create the schedule group unless it exists.

        Raises:
            ConfigurationError: it holds schedules that are not sqsdelay's.
            SchemaMismatch: another sqsdelay uses it.
        """
        self._group.set_up()

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        """Make a schedule for each message; True where it is new, False where its id is taken.

        Raises:
            ConfigurationError: a ``transaction`` given.
            InvalidMessage: not for this endpoint, no message for SQS, or due too soon.
            MessageTooLarge: above 256 KiB as a schedule's input.
            StoredInPart, StoreMissing, StoreUnavailable
        """
        check_no_transaction("a Scheduler store", None, transaction)
        first: dict[str, StoredMessage] = {}
        for message in messages:
            schedule_input.check_keepable(message, self._endpoint)
            first.setdefault(message.message_id, message)
        if not first:
            return []
        now_ms = self._group.now_ms()
        wanted = [(message, self._shape(message, now_ms)) for message in first.values()]
        made = dict(zip(first, self._group.each_tried(self._create, wanted), strict=True))
        new = new_once(messages, [i for i, outcome in made.items() if outcome is True])
        failed = {i: outcome for i, outcome in made.items() if isinstance(outcome, StoreError)}
        if failed:
            told = f"{len(failed)} of {len(made)} were not stored: {next(iter(failed.values()))}"
            both = zip(messages, new, strict=True)
            outcomes = [failed.get(message.message_id, is_new) for message, is_new in both]
            raise errors.StoredInPart(told, outcomes)
        return new

    def _create(self, wanted: tuple[StoredMessage, Shape]) -> bool:
        message, shape = wanted
        prefix = self._free_prefix(message)
        return prefix is not None and self._group.create(name_of(message.message_id, prefix), shape)

    def _free_prefix(self, message: StoredMessage) -> str | None:
        """Under which of its two names a message can be made; None where one of its id has the second.
        Whoever moves the message that was cancelled would write over one of the same name."""
        message_id = message.message_id
        if tells_due(message_id, message.due_ms):
            return self._names  # Nobody has sent it before.
        if self._get(name_of(message_id, self._second_names)) is not None:
            return None
        now_ms = self._group.clock.latest_ms()
        name = name_of(message_id, self._amendments)
        found = self._get(name)
        if found is None:
            return self._names
        amendment = schedule_input.amendment_of(message_id, str(found.get("Description")))
        cancelled_ms = amendment.at_ms if amendment.due_ms is None else amendment.cancelled_ms
        if cancelled_ms is None or now_ms - cancelled_ms >= _MOVED_BY_NOW_MS:
            return self._names
        used = self._get(name_of(message_id, self._second_used))
        if used is not None:
            seconds = max(1, fires_at(used) - now_ms // 1000)
            raise StoreUnavailable(
                f"message_id {message_id!r} was cancelled twice within {_MOVED_BY_NOW_MS // 1000} s; try "
                f"again in {seconds} s, or use another id"
            )
        self._use_second_name(message_id)
        return self._second_names

    def _shape(
        self, message: StoredMessage, now_ms: int, *, kept_since_ms: int | None = None
    ) -> Shape:
        at = schedule_input.firing_second(message.message_id, message.due_ms)
        if kept_since_ms is None:
            remaining = (message.due_ms - now_ms) // 1000
            if remaining < self.soonest_seconds:
                raise InvalidMessage(
                    f"message {message.message_id} is due in {remaining} s; a schedule is made for what is "
                    f"due in {self.soonest_seconds} s or later; send it without the store"
                )
            # Never before an amendment that its sender knew of: clocks are known to the second.
            kept_since_ms = self._group.clock.latest_ms() + CLOCKS_APART_MS
        at = max(at, now_ms // 1000 + schedule_input.CREATION_SECONDS)
        text = schedule_input.input_of(
            message, self._queue_url, fires_at=at, kept_since_ms=kept_since_ms
        )
        return self._group.sending(at, text, message.destination)

    def too_large(self, message: StoredMessage) -> bool:
        """Whether a message takes more than a schedule's input holds."""
        try:
            schedule_input.input_of(message, self._queue_url, fires_at=0, kept_since_ms=0)
        except InvalidMessage as error:
            return isinstance(error, MessageTooLarge)
        return False

    def pending_count(self) -> int:
        """How many messages wait; a ListSchedules call for each hundred."""
        return len(self._all_names())

    def _all_names(self) -> list[str]:
        self._group.check()
        return [*self._group.names(self._names), *self._group.names(self._second_names)]

    def _page(self, limit: int, from_ms: int, from_id: str, before_ms: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        names = self._all_names()
        for start in range(0, len(names), 100):
            fit = [
                one.message
                for one in self._group.each(self._read, names[start : start + 100])
                if one is not None
                and (from_ms, from_id) < (one.message.due_ms, one.message.message_id)
                and one.message.due_ms < before_ms
            ]
            found = heapq.nsmallest(limit, [*found, *fit], key=lambda m: (m.due_ms, m.message_id))
        return found

    def find(self, message_id: str) -> StoredMessage | None:
        """The message, None where it is not here: unknown, or on its way since its schedule fired."""
        waiting = self._waiting(message_id)
        return None if waiting is None else waiting.message

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        """Delete schedules; False where there is none, or it fires within a minute."""
        return self._group.each(self._cancel, message_ids)

    def _cancel(self, message_id: str) -> bool:
        waiting = self._waiting(message_id)
        if waiting is None:
            return False
        if waiting.name.startswith(self._second_names):
            self._use_second_name(message_id)
        return self._group.delete(waiting.name)

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        """Move a message; False where it is not here, or its schedule fires within a minute.

        One that is to be due sooner than a schedule can be fires as soon as one can.

        Raises:
            InvalidMessage: a due time outside 1970 to 9999.
            StoreUnavailable: it took so long that another message may have its name by now.
        """
        stored_message.check_stored_due(due_ms)
        waiting = self._waiting(message_id)
        if waiting is None:
            return False
        # Every field is written: UpdateSchedule gives those left out their defaults.
        shape = self._shape(
            replace(waiting.message, due_ms=due_ms),
            self._group.now_ms(),
            kept_since_ms=waiting.kept_since_ms,
        )
        if self._group.clock.local.monotonic() - waiting.read_at > _MOVE_SECONDS:
            raise StoreUnavailable(
                f"message {message_id!r} was not moved: its schedule was read more than {_MOVE_SECONDS} s "
                "ago; try again"
            )
        return self._group.replace(waiting.name, shape)

    def _waiting(self, message_id: str) -> _Waiting | None:
        self._group.check()
        names = (name_of(message_id, prefix) for prefix in (self._names, self._second_names))
        return next(filter(None, map(self._read, names)), None)

    def _read(self, name: str) -> _Waiting | None:
        read_at = self._group.clock.local.monotonic()
        schedule = self._get(name)
        if schedule is None:
            return None
        if fires_at(schedule) - schedule_input.CREATION_SECONDS <= self._group.now_ms() // 1000:
            # It fires at any moment, or has: nobody can say any more that it will not.
            return None
        text, destination = str(schedule["Target"]["Input"]), str(schedule.get("Description"))
        since_ms = schedule_input.kept_since_ms_of(text)
        return _Waiting(name, schedule_input.message_of(text, destination), since_ms, read_at)

    def _get(self, name: str) -> Schedule | None:
        """A schedule that sends to our parking queue: one that sends elsewhere is somebody else's."""
        schedule = self._group.get(name)
        try:
            ours = schedule and json.loads(schedule["Target"]["Input"])["QueueUrl"]
        except (KeyError, TypeError, ValueError):
            return None
        return schedule if ours == self._queue_url else None

    def amend(self, amendments: Sequence[Amendment]) -> None:
        """Keep amendments, each as a schedule that ends with its lifetime.

        Its target is a send that SQS refuses (an empty body): so it disappears by itself, after one
        invocation that fails."""
        self._group.each(self._amend, list(latest_amendments(amendments).values()))

    def _amend(self, amendment: Amendment) -> None:
        if amendment.due_ms is not None and amendment.cancelled_ms is None:
            earlier = self.amendments([amendment.message_id]).get(amendment.message_id)
            amendment = amendment.after(earlier)
        name = name_of(amendment.message_id, self._amendments)
        self._note(name, amendment.until_ms, schedule_input.description_of(amendment))

    def _use_second_name(self, message_id: str) -> None:
        """Note that a message has its second name, or had it until now, for as long as that matters."""
        until_ms = self._group.clock.latest_ms() + _MOVED_BY_NOW_MS
        self._note(name_of(message_id, self._second_used), until_ms, "second name")

    def _note(self, name: str, until_ms: int, description: str) -> None:
        shape = self._group.silent(-(-until_ms // 1000), description)
        while not self._group.create(name, shape):
            if self._group.replace(name, shape):
                return

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of those messages that have one; a GetSchedule call for each id.

        Raises:
            ReadInPart: some could not be read.
        """
        now_ms = self._group.now_ms()
        read = self._group.each_tried(self._amendment, message_ids)
        valid = (a for a in read if isinstance(a, Amendment) and a.until_ms > now_ms)
        found = {each.message_id: each for each in valid}
        failed = {i: e for i, e in zip(message_ids, read, strict=True) if isinstance(e, StoreError)}
        if failed:
            told = f"{len(failed)} of {len(read)} were not read: {next(iter(failed.values()))}"
            raise errors.ReadInPart(told, found, list(failed))
        return found

    def _amendment(self, message_id: str) -> Amendment | None:
        found = self._group.get(name_of(message_id, self._amendments))
        if not found:
            return None
        return schedule_input.amendment_of(message_id, str(found.get("Description")))

    def close(self) -> None:
        """Close connections and threads."""
        self._group.close()
