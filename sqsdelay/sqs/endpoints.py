"""An endpoint's queues on SQS: create them, and check that they are what the relay needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.delay import check_hop
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.readable import Problem
from sqsdelay.errors import ConfigurationError, InvalidSetting, QueueMissing
from sqsdelay.limits import (
    DEDUPLICATION_INTERVAL_SECONDS,
    DEFAULT_HOP_SECONDS,
    DELAY_QUEUE_VISIBILITY_SECONDS,
    FUNCTION_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    MAX_RETENTION_SECONDS,
    MIN_DELAY_QUEUE_RETENTION_SECONDS,
)
from sqsdelay.sending.router import collision, refuse_collision
from sqsdelay.sending.sizes import LIMIT, limit_of
from sqsdelay.sqs.client import asked, translated
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


def delay_queue_attributes(hop_seconds: int = DEFAULT_HOP_SECONDS) -> dict[str, str]:
    """The delay queue's attributes under SQS's names: high-throughput FIFO, no redrive policy."""
    return {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
        "DelaySeconds": str(hop_seconds),
        "MessageRetentionPeriod": str(MAX_RETENTION_SECONDS),
        "VisibilityTimeout": str(DELAY_QUEUE_VISIBILITY_SECONDS),
        "SqsManagedSseEnabled": "true",
    }


def fifo_queue_attributes() -> dict[str, str]:
    """Attributes of a FIFO destination under SQS's names."""
    return {"FifoQueue": "true", **standard_queue_attributes()}


def due_queue_attributes() -> dict[str, str]:
    """Attributes of a FIFO endpoint's due queue under SQS's names: no redrive policy."""
    return {
        **standard_queue_attributes(),
        "VisibilityTimeout": str(DELAY_QUEUE_VISIBILITY_SECONDS),
    }


def standard_queue_attributes() -> dict[str, str]:
    """Attributes of the destination and error queues under SQS's names."""
    return {
        "MessageRetentionPeriod": str(MAX_RETENTION_SECONDS),
        "SqsManagedSseEnabled": "true",
    }


def create_endpoint(
    client: SQSClient, endpoint: Endpoint, *, hop_seconds: int = DEFAULT_HOP_SECONDS
) -> list[str]:
    """Create the endpoint's queues that do not exist yet; leave existing ones as they are.

    Args:
        hop_seconds: the delay queue's delivery delay, 1 to 900.

    Returns:
        The names of the queues that were created.

    Raises:
        ConfigurationError: an existing delay queue is unsuitable (the error names the fix);
            another endpoint would share it; or a bad hop.
        QueueUnavailable, SendFailed: SQS did not answer or refused.
    """
    check_hop(hop_seconds)
    if endpoint.queue.url is not None or endpoint.queue.account_id is not None:
        raise InvalidSetting(
            f"endpoint {endpoint.name} is given by URL or ARN, which may lead to another account; "
            "create it by its name, with the credentials and region it belongs to"
        )
    queues = SqsQueues(client)
    refuse_collision(queues, endpoint)
    created = []
    for ref, attributes in _wanted(endpoint, hop_seconds):
        try:
            queues.url(ref)
        except QueueMissing:
            create_queue(client, ref, attributes)
            created.append(ref.name)
    problems = [p for p in check_endpoint(client, endpoint, hop_seconds=hop_seconds) if p.fatal]
    if problems:
        raise ConfigurationError("; ".join(f"{p.subject}: {p.text}: {p.remedy}" for p in problems))
    return created


def _wanted(endpoint: Endpoint, hop_seconds: int) -> Iterator[tuple[QueueRef, dict[str, str]]]:
    """The endpoint's queues and their attributes, in the order to create them in."""
    yield endpoint.queue, fifo_queue_attributes() if endpoint.fifo else standard_queue_attributes()
    yield endpoint.error_queue, standard_queue_attributes()
    if endpoint.fifo:
        yield endpoint.due_queue, due_queue_attributes()
    yield endpoint.delay_queue, delay_queue_attributes(hop_seconds)


def create_queue(client: SQSClient, ref: QueueRef, attributes: Mapping[str, str]) -> None:
    """Create a queue with attributes under SQS's names.

    Raises:
        QueueUnavailable, SendFailed: SQS did not answer or refused.
    """
    try:
        asked(client.create_queue, QueueName=ref.name, Attributes=attributes)
    except (ClientError, BotoCoreError) as error:
        raise translated(error, ref.name) from error


def check_endpoint(
    client: SQSClient, endpoint: Endpoint, *, hop_seconds: int = DEFAULT_HOP_SECONDS
) -> list[Problem]:
    """What keeps the endpoint from serving delays; empty when all is well.

    Raises:
        QueueUnavailable: SQS could not be asked.
    """
    check_hop(hop_seconds)
    queues = SqsQueues(client)
    problems: list[Problem] = []
    collides = collision(queues, endpoint)
    if collides is not None:
        problems.append(Problem(endpoint.name, collides, "use another name"))
    found = {ref: _attributes(queues, ref) for ref in endpoint.queues}
    problems += [_missing(endpoint, ref) for ref, attributes in found.items() if attributes is None]
    there = {ref: attributes for ref, attributes in found.items() if attributes is not None}
    if (attributes := there.get(endpoint.delay_queue)) is not None:
        name = endpoint.delay_queue.name
        problems.extend(delay_queue_problems(name, attributes, hop_seconds=hop_seconds))
    if endpoint.fifo and (attributes := there.get(endpoint.due_queue)) is not None:
        problems.extend(waiting_problems(endpoint.due_queue.name, attributes))
    problems.extend(size_problems(endpoint, there))
    return problems


def size_problems(
    endpoint: Endpoint, found: Mapping[QueueRef, Mapping[str, str]]
) -> Iterator[Problem]:
    """Queues that take less than SQS does, and what that means for the endpoint.

    Args:
        found: the attributes of those of its queues that are there.
    """
    for ref, attributes in found.items():
        limit = limit_of(attributes.get(LIMIT))
        if limit >= MAX_MESSAGE_BYTES:
            continue
        meaning = "larger ones are refused when they are sent, or go to the error queue"
        if ref == endpoint.error_queue:
            meaning = (
                "a larger one that cannot be delivered stays where it is, and is lost in 14 days"
            )
        yield Problem(
            ref.name,
            f"it takes messages of {limit} bytes (its {LIMIT}), SQS takes {MAX_MESSAGE_BYTES}: {meaning}",
            _set(ref.name, LIMIT, MAX_MESSAGE_BYTES),
            fatal=False,
        )


def delay_queue_problems(
    name: str, attributes: Mapping[str, str], *, hop_seconds: int
) -> Iterator[Problem]:
    """What NServiceBus demands of a delay queue, then what the relay needs besides."""
    delay = int(attributes.get("DelaySeconds", "0"))
    if delay < hop_seconds:
        yield Problem(
            name,
            f"its delay of {delay} s is shorter than the hop of {hop_seconds} s",
            _set(name, "DelaySeconds", hop_seconds)
            + f", or use a hop of {delay} s (--hop {delay})",
        )
    yield from waiting_problems(name, attributes)
    if attributes.get("FifoThroughputLimit") != "perMessageGroupId":
        yield Problem(
            name,
            "it is not high-throughput FIFO, which limits it to 300 calls per second in total",
            _set(name, "DeduplicationScope", "messageGroup")
            + ",FifoThroughputLimit=perMessageGroupId",
            fatal=False,
        )


def waiting_problems(name: str, attributes: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with a queue in which messages wait: the delay queue, or the due queue."""
    retention = int(attributes.get("MessageRetentionPeriod", "0"))
    if retention < MIN_DELAY_QUEUE_RETENTION_SECONDS:
        yield Problem(
            name,
            f"it keeps messages {retention} s, less than {MIN_DELAY_QUEUE_RETENTION_SECONDS} s (4 days)",
            _set(name, "MessageRetentionPeriod", MAX_RETENTION_SECONDS),
        )
    if attributes.get("RedrivePolicy"):
        yield Problem(
            name,
            "it has a redrive policy, which would remove messages that are only waiting",
            _set(name, "RedrivePolicy", '""'),
        )
    visibility = int(attributes.get("VisibilityTimeout", "0"))
    if not FUNCTION_TIMEOUT_SECONDS <= visibility < DEDUPLICATION_INTERVAL_SECONDS:
        yield Problem(
            name,
            f"its visibility timeout of {visibility} s is not between {FUNCTION_TIMEOUT_SECONDS} s "
            f"(the time for a batch) and {DEDUPLICATION_INTERVAL_SECONDS} s (the deduplication interval)",
            _set(name, "VisibilityTimeout", DELAY_QUEUE_VISIBILITY_SECONDS),
            fatal=False,
        )


def _attributes(queues: SqsQueues, ref: QueueRef) -> Mapping[str, str] | None:
    try:
        return queues.attributes(queues.url(ref))
    except QueueMissing:
        return None


def _missing(endpoint: Endpoint, ref: QueueRef) -> Problem:
    return Problem(ref.name, "it does not exist", f"sqsdelay endpoint create {endpoint.name}")


def _set(name: str, attribute: str, value: object) -> str:
    return (
        f"aws sqs set-queue-attributes --queue-url $(aws sqs get-queue-url --queue-name {name} "
        f"--output text) --attributes {attribute}={value}"
    )
