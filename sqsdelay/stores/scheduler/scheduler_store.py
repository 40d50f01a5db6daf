"""`SchedulerStore`: each parked message is a one-time schedule of EventBridge Scheduler."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqsdelay.core.clock import Clock
from sqsdelay.core.delay import (
    CREATION_SECONDS,
    check_hop,
    firing_second,
    soonest_seconds,
)
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.schedule_input import (
    MAX_INPUT_BYTES,
    amendment_name_of,
    amendment_of,
    check_keepable,
    description_of,
    input_of,
    kept_since_ms_of,
    message_of,
    name_of,
)
from sqsdelay.core.stored_message import (
    Amendment,
    StoredMessage,
    check_stored_due,
    latest_amendments,
)
from sqsdelay.errors import (
    ConfigurationError,
    InvalidMessage,
    MessageTooLarge,
    StoredInPart,
    StoreError,
)
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.stores.page import page_bounds
from sqsdelay.stores.results import new_once
from sqsdelay.stores.scheduler.group import Group, Schedule, fires_at

_MESSAGES: Final = "m."

_SURELY_FITS_BYTES: Final = MAX_INPUT_BYTES // 8
"""JSON makes six bytes of some; the rest is for attributes and names."""

CLOCKS_APART_MS: Final = 2_000
"""How far two readings of the service's clock may lie apart: each is known to the second."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message's schedule, read."""

    schedule: Schedule
    message: StoredMessage

    @property
    def text(self) -> str:
        return str(self.schedule["Target"]["Input"])

    def under_way(self, now_ms: int) -> bool:
        """Whether it fires at any moment, or has: nobody can say any more that it will not."""
        return fires_at(self.schedule) - CREATION_SECONDS <= now_ms // 1000


class SchedulerStore:
    """Messages of one endpoint as one-time schedules: a place to park in that needs no dispatcher.

    A schedule fires early, into the endpoint's delay queue. The delay consumer does the rest, so a
    message is due to the second although a schedule is not. What has fired is no longer here: it is
    cancelled and moved by an amendment, as any message in the delay queue.

    Args:
        group: the schedule group; `set_up` creates it.
        role_arn: the role that EventBridge Scheduler assumes; it may send to the delay queue and to
            the error queue.
        endpoint: whose messages these are: a queue name, URL or ARN. Where it does not say the account
            or region, they are the role's and the client's.
        client: a boto3 EventBridge Scheduler client; made from the default session when left out.
        hop_seconds: the delay queue's delivery delay.
        clock: this machine's; the service's own time is read from its answers.

    Raises:
        InvalidEndpoint, ConfigurationError
    """

    def __init__(
        self,
        group: str,
        *,
        role_arn: str,
        endpoint: str,
        client: Any = None,
        hop_seconds: int = DEFAULT_HOP_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        check_hop(hop_seconds)
        self._endpoint = Endpoint.parse(endpoint)
        self._hop_seconds = hop_seconds
        self._group = Group(group, role_arn=role_arn, client=client, clock=clock)
        self._delay_queue_url = self._group.queue_url(self._endpoint.delay_queue)
        self._error_queue_arn = self._group.queue_arn(self._endpoint.error_queue)

    @property
    def soonest_seconds(self) -> int:
        """Messages due sooner than that, in seconds, are refused."""
        return soonest_seconds(self._hop_seconds)

    def set_up(self) -> None:
        """Create the schedule group unless it exists."""
        self._group.set_up()

    def store(self, messages: Sequence[StoredMessage], *, transaction: Any = None) -> list[bool]:
        """Make a schedule for each message; True where it is new, False where its id is taken.

        Raises:
            ConfigurationError: a ``transaction`` given.
            InvalidMessage: not for this endpoint, no message for SQS, or due too soon.
            MessageTooLarge: above 256 KiB as a schedule's input.
            StoredInPart, StoreMissing, StoreUnavailable
        """
        if transaction is not None:
            raise ConfigurationError(
                "a Scheduler store takes no transaction=; leave it out, or use SQLite or PostgreSQL"
            )
        first: dict[str, StoredMessage] = {}
        for message in messages:
            check_keepable(message, self._endpoint)
            first.setdefault(message.message_id, message)
        if not first:
            return []
        now_ms = self._group.now_ms()
        wanted = [(message, self._fields(message, now_ms)) for message in first.values()]
        made = dict(zip(first, self._group.each(self._create, wanted), strict=True))
        new = new_once(messages, [i for i, outcome in made.items() if outcome is True])
        failed = {i: outcome for i, outcome in made.items() if isinstance(outcome, StoreError)}
        if failed:
            error = next(iter(failed.values()))
            if len(failed) == len(made):
                raise error
            outcomes = [
                failed.get(message.message_id, is_new)
                for message, is_new in zip(messages, new, strict=True)
            ]
            raise StoredInPart(f"{len(failed)} of {len(made)} were not stored: {error}", outcomes)
        return new

    def _create(self, wanted: tuple[StoredMessage, dict[str, Any]]) -> bool | StoreError:
        message, fields = wanted
        try:
            return self._group.create(name_of(message.message_id), **fields)
        except StoreError as error:
            return error

    def _fields(
        self, message: StoredMessage, now_ms: int, *, kept_since_ms: int | None = None
    ) -> dict[str, Any]:
        """What a message's schedule is made of.

        Raises:
            InvalidMessage, MessageTooLarge
        """
        remaining = (message.due_ms - now_ms) // 1000
        if remaining < self.soonest_seconds:
            raise InvalidMessage(
                f"message {message.message_id} is due in {remaining} s; a schedule is made for what is due "
                f"in {self.soonest_seconds} s or later; send it without the store"
            )
        at = firing_second(message.message_id, message.due_ms, hop_seconds=self._hop_seconds)
        if kept_since_ms is None:
            # Never before an amendment that its sender knew of: clocks are known to the second.
            kept_since_ms = self._group.clock.latest_ms() + CLOCKS_APART_MS
        text = input_of(message, self._delay_queue_url, fires_at=at, kept_since_ms=kept_since_ms)
        return {
            "fires_at": at,
            "text": text,
            "description": message.destination,
            "dead_letters": self._error_queue_arn,
        }

    def too_large(self, message: StoredMessage) -> bool:
        """Whether a message takes more than a schedule's input holds."""
        if len(message.body) + len(message.headers()) <= _SURELY_FITS_BYTES:
            return False
        try:
            input_of(message, self._delay_queue_url, fires_at=0, kept_since_ms=0)
        except MessageTooLarge:
            return True
        except InvalidMessage:
            pass
        return False

    def pending_count(self) -> int:
        """How many messages wait; a ListSchedules call for each hundred."""
        return sum(1 for _ in self._group.names(_MESSAGES))

    def pending(
        self,
        limit: int,
        *,
        after: tuple[int, str] | None = None,
        due_from_ms: int | None = None,
        due_before_ms: int | None = None,
    ) -> list[StoredMessage]:
        """One page by due time and id, for people, not for loops.

        A listing has no due times, so each page reads every schedule: a GetSchedule call for each
        message and a ListSchedules call for each hundred. The calls are free, and limited to some
        thousand a second.
        """
        due_ms, message_id, end_ms = page_bounds(after, due_from_ms, due_before_ms)
        now_ms = self._group.now_ms()
        found: list[StoredMessage] = []
        for names in _hundreds(list(self._group.names(_MESSAGES))):
            read = [
                self._read(s) for s in self._group.each(self._group.get, names) if s is not None
            ]
            fit = [
                one.message
                for one in read
                if (due_ms, message_id) < (one.message.due_ms, one.message.message_id)
                and one.message.due_ms < end_ms
                and not one.under_way(now_ms)
            ]
            found = heapq.nsmallest(limit, [*found, *fit], key=lambda m: (m.due_ms, m.message_id))
        return found

    def find(self, message_id: str) -> StoredMessage | None:
        """The message, None where it is not here: unknown, or on its way since its schedule fired."""
        waiting = self._waiting(message_id)
        if waiting is None or waiting.under_way(self._group.now_ms()):
            return None
        return waiting.message

    def cancel(self, message_ids: Sequence[str]) -> list[bool]:
        """Delete schedules; False where there is none, or it fires within a minute."""
        return self._group.each(self._cancel, message_ids)

    def _cancel(self, message_id: str) -> bool:
        waiting = self._waiting(message_id)
        if waiting is None or waiting.under_way(self._group.now_ms()):
            return False
        return self._group.delete(name_of(message_id))

    def reschedule(self, message_id: str, due_ms: int) -> bool:
        """Move a message; False where it is not here, or its schedule fires within a minute.

        Raises:
            InvalidMessage: a due time outside 1970 to 9999, or too soon for a schedule.
        """
        check_stored_due(due_ms)
        waiting = self._waiting(message_id)
        now_ms = self._group.now_ms()
        if waiting is None or waiting.under_way(now_ms):
            return False
        kept = waiting.message
        moved = StoredMessage(
            message_id=kept.message_id,
            destination=kept.destination,
            due_ms=due_ms,
            body=kept.body,
            attributes=kept.attributes,
            group_id=kept.group_id,
            trace_header=kept.trace_header,
        )
        # Every field is written: UpdateSchedule gives those left out their defaults.
        fields = self._fields(moved, now_ms, kept_since_ms=kept_since_ms_of(waiting.text))
        return self._group.replace(name_of(message_id), **fields)

    def _waiting(self, message_id: str) -> _Waiting | None:
        schedule = self._group.get(name_of(message_id))
        return None if schedule is None else self._read(schedule)

    def _read(self, schedule: Schedule) -> _Waiting:
        text, destination = str(schedule["Target"]["Input"]), str(schedule.get("Description"))
        return _Waiting(schedule, message_of(text, destination))

    def amend(self, amendments: Sequence[Amendment]) -> None:
        """Keep amendments, each as a schedule that ends with its lifetime.

        Its target is a send that the delay queue refuses (no message group): so it disappears by
        itself, after one invocation that fails.
        """
        self._group.each(self._amend, list(latest_amendments(amendments).values()))

    def _amend(self, amendment: Amendment) -> None:
        name = amendment_name_of(amendment.message_id)
        if amendment.due_ms is not None and amendment.cancelled_ms is None:
            earlier = self.amendments([amendment.message_id]).get(amendment.message_id)
            amendment = amendment.after(earlier)
        fields: dict[str, Any] = {
            "fires_at": -(-amendment.until_ms // 1000),
            "text": json.dumps({"QueueUrl": self._delay_queue_url, "MessageBody": "-"}),
            "description": description_of(amendment),
            "dead_letters": None,
        }
        while not self._group.create(name, **fields):
            if self._group.replace(name, **fields):
                return

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        """The amendments of those messages that have one; a GetSchedule call for each id."""
        # Asks for the group where its time is not known: without it there would be no amendments.
        now_ms = self._group.now_ms()
        schedules = self._group.each(
            lambda message_id: self._group.get(amendment_name_of(message_id)), message_ids
        )
        return {
            message_id: amendment
            for message_id, schedule in zip(message_ids, schedules, strict=True)
            if schedule is not None
            and (amendment := amendment_of(message_id, str(schedule.get("Description")))).until_ms
            > now_ms
        }

    def close(self) -> None:
        """Close connections and threads."""
        self._group.close()


def _hundreds(names: list[str]) -> list[list[str]]:
    return [names[i : i + 100] for i in range(0, len(names), 100)]
