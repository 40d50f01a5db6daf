"""EventBridge Scheduler in memory: what `SchedulerStore` uses of it, under virtual time."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, Final

import botocore.session
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator

from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import Attribute, OutgoingMessage, size_of
from sqsdelay.errors import SqsDelayError
from sqsdelay.ports.queues import Failure, Queues
from sqsdelay.testing.in_memory import ManualClock

_CONTEXT: Final = re.compile(
    r"<aws\.scheduler\.(schedule-arn|scheduled-time|execution-id|attempt-number)>"
)
_RETRY_SECONDS: Final = 60
_PAGE: Final = 100
_NEVER_MS: Final = 2**63


@dataclass(slots=True)
class _Schedule:
    fields: dict[str, Any]
    fires_ms: int
    first_tried_ms: int | None = None
    attempts: int = 0


class InMemoryScheduler:
    """The calls of a boto3 EventBridge Scheduler client that sqsdelay makes, and the service behind it.

    Kept as the service documents it: parameters are checked against botocore's model; one-time
    schedules fire up to a minute late, are retried for as long as their policy says, then go to the
    dead-letter queue, and are deleted after that; context attributes in the input are replaced; a name
    is taken once.

    Args:
        clock: the service's clock, moved by the test.
        queues: where the ``SendMessage`` requests of schedules that fire end.
        late_seconds: how long after its time a schedule fires, 0 to 60.
        requests_per_second: `CreateSchedule` calls taken in one second of the clock; None takes all.
    """

    def __init__(
        self,
        clock: ManualClock,
        queues: Queues,
        *,
        late_seconds: float = 0,
        requests_per_second: int | None = None,
    ) -> None:
        self.clock = clock
        self.meta = SimpleNamespace(region_name="us-east-1", endpoint_url="memory://scheduler")
        self.calls: list[str] = []
        self._asked = threading.local()
        self._queues = queues
        self._late_ms = round(late_seconds * 1000)
        self._quota = requests_per_second
        self._taken = (0, 0)
        self._groups: dict[str, dict[str, _Schedule]] = {}
        self._model = botocore.session.get_session().get_service_model("scheduler")

    def create_schedule_group(self, **asked: Any) -> dict[str, Any]:
        """Make a group."""
        self._check("CreateScheduleGroup", asked)
        if asked["Name"] in self._groups:
            raise self._refused(
                "ConflictException", f"Schedule group {asked['Name']} already exists."
            )
        self._groups[asked["Name"]] = {}
        return self._answer()

    def create_schedule(self, **asked: Any) -> dict[str, Any]:
        """Make a schedule."""
        self._check("CreateSchedule", asked)
        self._count()
        group, name = self._group(asked["GroupName"]), asked["Name"]
        if name in group:
            raise self._refused("ConflictException", f"Schedule {name} already exists.")
        group[name] = _Schedule(asked, _due_ms(asked))
        return self._answer()

    def update_schedule(self, **asked: Any) -> dict[str, Any]:
        """Write every field of a schedule anew."""
        self._check("UpdateSchedule", asked)
        self._find(asked)
        self._group(asked["GroupName"])[asked["Name"]] = _Schedule(asked, _due_ms(asked))
        return self._answer()

    def get_schedule(self, **asked: Any) -> dict[str, Any]:
        """Describe a schedule."""
        self._check("GetSchedule", asked)
        return self._answer(**self._find(asked).fields)

    def delete_schedule(self, **asked: Any) -> dict[str, Any]:
        """Delete a schedule."""
        self._check("DeleteSchedule", asked)
        self._find(asked)
        del self._group(asked["GroupName"])[asked["Name"]]
        return self._answer()

    def list_schedules(self, **asked: Any) -> dict[str, Any]:
        """One page of names; what a listing has of a schedule, it has no due time."""
        self._check("ListSchedules", asked)
        group, prefix = self._group(asked["GroupName"]), asked.get("NamePrefix", "")
        names = sorted(name for name in group if name.startswith(prefix))
        start, size = int(asked.get("NextToken", "0")), asked.get("MaxResults", _PAGE)
        more = {"NextToken": str(start + size)} if start + size < len(names) else {}
        page = [{"Name": name, "State": "ENABLED"} for name in names[start : start + size]]
        return self._answer(Schedules=page, **more)

    def close(self) -> None:
        """As a client's."""

    def fire(self) -> int:
        """Fire what is to fire by now; how many invocations that took."""
        invocations = 0
        for group in self._groups.values():
            for name, schedule in list(group.items()):
                while schedule.fires_ms + self._late_ms <= self.clock.true_ms:
                    invocations += 1
                    if self._invoke(schedule):
                        del group[name]
                        break
        return invocations

    def next_ms(self) -> int | None:
        """When the next schedule fires, epoch milliseconds; None when there is none."""
        times = [s.fires_ms + self._late_ms for g in self._groups.values() for s in g.values()]
        return min((each for each in times if each < _NEVER_MS), default=None)

    def _invoke(self, schedule: _Schedule) -> bool:
        """Whether it has ended: sent, or given up."""
        target = schedule.fields["Target"]
        if schedule.first_tried_ms is None:
            schedule.first_tried_ms = schedule.fires_ms
        schedule.attempts += 1
        request = json.loads(_CONTEXT.sub("replaced by the service", target["Input"]))
        try:
            self._send(request)
        except SqsDelayError as error:
            policy = target.get("RetryPolicy", {})
            next_ms = schedule.fires_ms + _RETRY_SECONDS * 1000
            age_ms = policy.get("MaximumEventAgeInSeconds", 86_400) * 1000
            retries = policy.get("MaximumRetryAttempts", 185)
            if schedule.attempts <= retries and next_ms - schedule.first_tried_ms <= age_ms:
                schedule.fires_ms = next_ms
                return False
            self._give_up(target, schedule.attempts, error)
        return True

    def _give_up(self, target: Mapping[str, Any], attempts: int, error: SqsDelayError) -> None:
        dead_letters = target.get("DeadLetterConfig", {}).get("Arn")
        if dead_letters is None:
            return
        told = {
            "ERROR_CODE": "AWS.SimpleQueueService.NonExistentQueue",
            "ERROR_MESSAGE": str(error),
            "EXHAUSTED_RETRY_CONDITION": "MaximumEventAgeInSeconds",
            "RETRY_ATTEMPTS": str(attempts - 1),
            "TARGET_ARN": target["Arn"],
        }
        self._send(
            {
                "QueueUrl": f"https://sqs/0/{dead_letters.rpartition(':')[2]}",
                "MessageBody": target["Input"],
                "MessageAttributes": {
                    name: {"DataType": "String", "StringValue": value}
                    for name, value in told.items()
                },
            }
        )

    def _send(self, request: Mapping[str, Any]) -> None:
        """``SendMessage``, with its parameters as JSON.

        Raises:
            SqsDelayError: it is refused.
        """
        attributes = {n: _decoded(v) for n, v in request.get("MessageAttributes", {}).items()}
        body = request["MessageBody"]
        if not body:
            raise SqsDelayError("The request must contain the parameter MessageBody.")
        trace = request.get("MessageSystemAttributes", {}).get("AWSTraceHeader", {})
        entry = OutgoingMessage(
            body=body,
            attributes=attributes,
            size=size_of(body, attributes),
            delay_seconds=request.get("DelaySeconds"),
            group_id=request.get("MessageGroupId"),
            deduplication_id=request.get("MessageDeduplicationId"),
            trace_header=trace.get("StringValue"),
        )
        url = self._queues.url(QueueRef(request["QueueUrl"].rpartition("/")[2]))
        (outcome,) = self._queues.send_batch(url, [entry])
        if isinstance(outcome, Failure):
            raise outcome.error

    def _count(self) -> None:
        second = self.clock.true_ms // 1000
        taken = self._taken[1] + 1 if self._taken[0] == second else 1
        self._taken = (second, taken)
        if self._quota is not None and taken > self._quota:
            raise self._refused("ThrottlingException", "Rate exceeded")

    def _check(self, operation: str, asked: dict[str, Any]) -> None:
        self.calls.append(operation)
        self._asked.operation = operation
        shape = self._model.operation_model(operation).input_shape
        assert shape is not None  # each of these operations takes parameters
        report = ParamValidator().validate(asked, shape)
        if report.has_errors():
            raise self._refused("ValidationException", report.generate_report())
        for name, member in shape.members.items():
            pattern = member.metadata.get("pattern")
            value = asked.get(name)
            if pattern and isinstance(value, str) and not re.fullmatch(pattern, value):
                raise self._refused("ValidationException", f"{name}={value!r} is not {pattern}")

    def _group(self, name: str) -> dict[str, _Schedule]:
        if name not in self._groups:
            raise self._refused(
                "ResourceNotFoundException", f"Schedule group {name} does not exist."
            )
        return self._groups[name]

    def _find(self, asked: Mapping[str, Any]) -> _Schedule:
        found = self._group(asked["GroupName"]).get(asked["Name"])
        if found is None:
            raise self._refused(
                "ResourceNotFoundException", f"Schedule {asked['Name']} does not exist."
            )
        return found

    def _answer(self, **fields: Any) -> dict[str, Any]:
        date = format_datetime(datetime.fromtimestamp(self.clock.true_ms // 1000, UTC), usegmt=True)
        return {
            **fields,
            "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {"date": date}},
        }

    def _refused(self, code: str, text: str) -> ClientError:
        return ClientError({"Error": {"Code": code, "Message": text}}, self._asked.operation)


def _decoded(value: Mapping[str, str]) -> Attribute:
    """As AWS's SDKs read JSON: bytes are base64 in it."""
    if "BinaryValue" in value:
        return {
            "DataType": value["DataType"],
            "BinaryValue": base64.b64decode(value["BinaryValue"]),
        }
    return {"DataType": value["DataType"], "StringValue": value["StringValue"]}


def _due_ms(asked: Mapping[str, Any]) -> int:
    if asked.get("State") == "DISABLED":
        return _NEVER_MS
    text = f"{asked['ScheduleExpression']}+0000"
    return int(datetime.strptime(text, "at(%Y-%m-%dT%H:%M:%S)%z").timestamp() * 1000)
