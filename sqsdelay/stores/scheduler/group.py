"""One endpoint's schedule group: its version, and calls, many at a time, paced, errors translated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from botocore.exceptions import ClientError

from sqsdelay import errors
from sqsdelay.core.delay import BrokerClock, Clock, SystemClock
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import SCHEDULE_RETRY_SECONDS
from sqsdelay.core.received_message import whole_number
from sqsdelay.core.schedule_input import name_of, prefix_of
from sqsdelay.stores.calls import Calls, R, T, answered_ms
from sqsdelay.stores.shared import VERSION, check_version

SEND_MESSAGE: Final = "arn:aws:scheduler:::aws-sdk:sqs:sendMessage"
"""The universal target for ``SendMessage``. Source: EventBridge Scheduler User Guide, "Using universal
targets"."""

MAX_RETRIES: Final = 185
"""Source: RetryPolicy API reference."""

_MOST_LISTED: Final = 100
"""Source: ListSchedules API reference, MaxResults."""

_NOT_THERE: Final = "ResourceNotFoundException"
_THERE: Final = "ConflictException"

_MEANS_NO: Final = frozenset(
    {("CreateSchedule", _THERE), ("CreateScheduleGroup", _THERE)}
    | {(call, _NOT_THERE) for call in ("GetSchedule", "UpdateSchedule", "DeleteSchedule")}
)
"""Refusals that are answers: there is one of that name, or none. What is not found is taken for the
schedule. That the group is gone, CreateSchedule tells: no answer's wording is relied on."""

_ROLE: Final = re.compile(r"arn:(aws[a-z-]*):iam::(\d{12}):role/[\w+=,.@/-]+", re.ASCII)
"""Source: Target API reference, RoleArn."""

_OURS: Final = re.compile(r"[mnsav]\.[0-9a-f]{16}\.[0-9a-f]{45}", re.ASCII)
"""Names of our schedules: `sqsdelay.core.schedule_input`."""


class _No(errors.StoreError):
    """An answer, and no refusal."""


Schedule = dict[str, Any]
"""What GetSchedule answers."""

Shape = dict[str, Any]
"""What a schedule is made of besides its name."""


class Group(Calls):
    """A schedule group by its name. Each call may raise StoreMissing and StoreUnavailable. Raises
    ConfigurationError: a role that is no ARN, a client without a region. ``name``: the group's. ``role_arn``:
    the role that the service assumes to send. ``endpoint``: whose schedules these are. ``client``: a boto3
    EventBridge Scheduler client. ``clock``: this machine's; the service's own is learned from its answers."""

    def __init__(
        self, name: str, *, role_arn: str, endpoint: Endpoint, client: Any, clock: Clock | None
    ) -> None:
        role = _ROLE.fullmatch(role_arn)
        if role is None:
            raise errors.InvalidSetting(
                f"role {role_arn!r} is not a role's ARN; write arn:aws:iam::ACCOUNT:role/NAME"
            )
        super().__init__("scheduler", client)
        self._partition, self._account = role.groups()
        self.name = name
        self.clock = BrokerClock(clock or SystemClock())
        self._role_arn = role_arn
        self._error_queue_arn = self._queue_arn(endpoint.error_queue)
        domain = "amazonaws.com.cn" if self._partition == "aws-cn" else "amazonaws.com"
        _, _, _, region, account, queue = self._queue_arn(endpoint.parking_queue).split(":")
        self.queue_url = f"https://sqs.{region}.{domain}/{account}/{queue}"
        """The parking queue's, as the service is to send to it."""
        self._version_name = name_of("", prefix_of(self.queue_url, "v"))
        self._checked = False

    def _queue_arn(self, queue: QueueRef) -> str:
        region = queue.region or self.client.meta.region_name
        account = queue.account_id or self._account
        return f"arn:{self._partition}:sqs:{region}:{account}:{queue.name}"

    def now_ms(self) -> int:
        """The service's now, epoch milliseconds, never ahead of it."""
        self.check()
        return self.clock.now_ms()

    def check(self) -> None:
        """Refuse to work without the group, or with another version's. It is asked for at first, and again
        where the service's time is not known any more: the answer tells it. A schedule that never fires tells
        the version. The first who comes makes it."""
        if self._checked and self.clock.synchronised:
            return
        never = {"State": "DISABLED", "ScheduleExpression": "rate(365 days)"}
        version = self.silent(0, str(VERSION)) | never | {"ActionAfterCompletion": "NONE"}
        if not (self._is_ours() or self.create(self._version_name, version) or self._is_ours()):
            raise errors.StoreUnavailable(f"schedule group {self.name} is being set up; try again")
        self._checked = True

    def _is_ours(self) -> bool:
        told = self.get(self._version_name)
        if told is not None:
            check_version(whole_number(told.get("Description")), self.name, "schedule group")
        return told is not None

    def each(self, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """As `Calls.each`, of a group that was checked."""
        self.check()
        return super().each(do, items)

    def each_tried(self, do: Callable[[T], R], items: Iterable[T]) -> list[R | errors.StoreError]:
        """As `each`, with the error in place of an answer; raises it where there is no answer at all."""

        def tried(item: T) -> R | errors.StoreError:
            try:
                return do(item)
            except errors.StoreError as error:
                return error

        answers = self.each(tried, items)
        errors_only = [answer for answer in answers if isinstance(answer, errors.StoreError)]
        if errors_only and len(errors_only) == len(answers):
            raise errors_only[0]
        return answers

    def set_up(self) -> None:
        """Create the group unless it exists, with schedules that are all sqsdelay's; then a call for each
        hundred of them."""
        self._checked = False
        if self._call(self.client.create_schedule_group, Name=self.name) is None:
            self._is_ours()
            # All of them: a listing is in no order that would show a foreign one first.
            foreign = next((name for name in self.names() if not _OURS.fullmatch(name)), None)
            if foreign is not None:
                raise errors.ConfigurationError(
                    f"schedule group {self.name} holds {foreign}, which is not sqsdelay's; give the "
                    "endpoint a group of its own, or one that only sqsdelay's endpoints use"
                )
        self.check()

    def create(self, name: str, shape: Shape) -> bool:
        """Make a schedule; False where there is one of that name."""
        return self._ask(self.client.create_schedule, name, **shape) is not None

    def replace(self, name: str, shape: Shape) -> bool:
        """Write every field of a schedule anew; False where there is none of that name."""
        return self._ask(self.client.update_schedule, name, **shape) is not None

    def sending(self, fires_at: int, text: str, description: str) -> Shape:
        """A one-time schedule: what could not be sent in a day goes to the error queue. ``fires_at``: epoch
        seconds. ``text``: the target's input."""
        policy = {
            "MaximumEventAgeInSeconds": SCHEDULE_RETRY_SECONDS,
            "MaximumRetryAttempts": MAX_RETRIES,
        }
        dead_letters = {"DeadLetterConfig": {"Arn": self._error_queue_arn}}
        return self._shape(fires_at, text, description, RetryPolicy=policy, **dead_letters)

    def silent(self, fires_at: int, description: str) -> Shape:
        """One that only tells something until then. SQS refuses what it sends, an empty body."""
        text = json.dumps({"QueueUrl": self.queue_url, "MessageBody": ""})
        policy = {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
        return self._shape(fires_at, text, description, RetryPolicy=policy)

    def _shape(self, fires_at: int, text: str, description: str, **target: Any) -> Shape:
        return {
            "Description": description,
            "ScheduleExpression": f"at({datetime.fromtimestamp(fires_at, UTC):%Y-%m-%dT%H:%M:%S})",
            "ScheduleExpressionTimezone": "UTC",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "ActionAfterCompletion": "DELETE",
            "State": "ENABLED",
            "Target": {"Arn": SEND_MESSAGE, "RoleArn": self._role_arn, "Input": text, **target},
        }

    def get(self, name: str) -> Schedule | None:
        """A schedule, None where there is none of that name."""
        schedule: Schedule | None = self._ask(self.client.get_schedule, name)
        return schedule

    def delete(self, name: str) -> bool:
        """Delete a schedule; False where there was none."""
        return self._ask(self.client.delete_schedule, name) is not None

    def names(self, prefix: str = "") -> Iterator[str]:
        """The names of the group's schedules that begin so, in no order; a call for each hundred."""
        more: dict[str, str] = {"NamePrefix": prefix} if prefix else {}
        while True:
            page = self._call(
                self.client.list_schedules, GroupName=self.name, MaxResults=_MOST_LISTED, **more
            )
            yield from (schedule["Name"] for schedule in page["Schedules"])
            if not page.get("NextToken"):
                return
            more["NextToken"] = page["NextToken"]

    def _ask(self, call: Callable[..., Any], name: str, **shape: Any) -> Any:
        return self._call(call, Name=name, GroupName=self.name, **shape)

    def _call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        """The service's answer; None where it says that there is one of that name, or none."""
        asked_at = self.clock.local.monotonic()
        try:
            answer = self.answered(call, **arguments)
        except _No:
            return None
        told_ms = answered_ms(answer)
        if told_ms is not None:
            self.clock.observe(told_ms, asked_at=asked_at)
        return answer

    def _refused(self, error: Exception, response: Any) -> errors.StoreError:
        code = response.get("Error", {}).get("Code", "")
        if isinstance(error, ClientError) and (error.operation_name, code) in _MEANS_NO:
            return _No(str(error))
        if code == _THERE:
            return errors.StoreError(str(error))
        if code == _NOT_THERE:
            return errors.StoreMissing(
                f"schedule group {self.name} does not exist at {self.client.meta.endpoint_url}; run "
                "sqsdelay store create or set_up(), or deploy it"
            )
        if code == "ValidationException":
            return errors.StoreError(f"schedule group {self.name}: {error}")
        return errors.StoreUnavailable(f"schedule group {self.name} cannot be used now: {error}")


def fires_at(schedule: Schedule) -> int:
    """When a one-time schedule fires, epoch seconds. Raises StoreError: it is another kind of schedule."""
    text = str(schedule["ScheduleExpression"])
    try:
        return int(datetime.strptime(f"{text}+0000", "at(%Y-%m-%dT%H:%M:%S)%z").timestamp())
    except ValueError as error:
        raise errors.StoreError(
            f"schedule {schedule.get('Name')} is not one of sqsdelay's schedules: {text}"
        ) from error
