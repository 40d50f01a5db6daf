"""An endpoint's queues on SQS: create them, and check that they are what the relay needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core import limits
from sqsdelay.core.delay import check_hop
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.readable import Problem
from sqsdelay.errors import ConfigurationError, InvalidSetting, QueueMissing
from sqsdelay.ports.queues import Queues
from sqsdelay.relaying.outcomes import RelaySettings
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.router import collision, refuse_collision
from sqsdelay.sending.sizes import LIMIT, limit_of
from sqsdelay.sqs.client import asked, translated
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)


def standard_queue_attributes() -> dict[str, str]:
    """Attributes of the destination and error queues under SQS's names."""
    retention = str(limits.MAX_RETENTION_SECONDS)
    return {"MessageRetentionPeriod": retention, "SqsManagedSseEnabled": "true"}


def fifo_queue_attributes() -> dict[str, str]:
    """Those of a FIFO destination."""
    return {"FifoQueue": "true", **standard_queue_attributes()}


def due_queue_attributes() -> dict[str, str]:
    """Those of a FIFO endpoint's due queue: no redrive policy."""
    visibility = str(limits.DELAY_QUEUE_VISIBILITY_SECONDS)
    return {**standard_queue_attributes(), "VisibilityTimeout": visibility}


def delay_queue_attributes(hop_seconds: int = limits.DEFAULT_HOP_SECONDS) -> dict[str, str]:
    """Those of the delay queue: high-throughput FIFO, no redrive policy."""
    return {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
        "DelaySeconds": str(hop_seconds),
        **due_queue_attributes(),
    }


def create_endpoint(
    client: SQSClient, endpoint: Endpoint, *, hop_seconds: int = limits.DEFAULT_HOP_SECONDS
) -> list[str]:
    """Create the endpoint's queues that do not exist yet, leave existing ones as they are; the names of those
    created. ``hop_seconds``: the delay queue's delivery delay, 1 to 900.

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
    created = create_missing(client, queues, _wanted(endpoint, hop_seconds))
    refuse(p for p in check_endpoint(client, endpoint, hop_seconds=hop_seconds) if p.fatal)
    return created


def _wanted(endpoint: Endpoint, hop_seconds: int) -> Iterator[tuple[QueueRef, dict[str, str]]]:
    """The endpoint's queues and their attributes, in the order to create them in."""
    yield endpoint.queue, fifo_queue_attributes() if endpoint.fifo else standard_queue_attributes()
    yield endpoint.error_queue, standard_queue_attributes()
    if endpoint.fifo:
        yield endpoint.due_queue, due_queue_attributes()
    yield endpoint.delay_queue, delay_queue_attributes(hop_seconds)


def create_missing(
    client: SQSClient, queues: SqsQueues, wanted: Iterable[tuple[QueueRef, Mapping[str, str]]]
) -> list[str]:
    """Create those queues that do not exist yet; their names. Raises QueueUnavailable, SendFailed."""
    created = []
    for ref, attributes in wanted:
        try:
            queues.url(ref)
        except QueueMissing:
            create_queue(client, ref, attributes)
            created.append(ref.name)
    return created


def create_queue(client: SQSClient, ref: QueueRef, attributes: Mapping[str, str]) -> None:
    """Create a queue with attributes under SQS's names. Raises QueueUnavailable, SendFailed."""
    try:
        asked(client.create_queue, QueueName=ref.name, Attributes=attributes)
    except (ClientError, BotoCoreError) as error:
        raise translated(error, ref.name) from error


def check_endpoint(
    client: SQSClient, endpoint: Endpoint, *, hop_seconds: int = limits.DEFAULT_HOP_SECONDS
) -> list[Problem]:
    """What keeps the endpoint from serving delays; empty when all is well. Raises QueueUnavailable: SQS could
    not be asked."""
    check_hop(hop_seconds)
    queues = SqsQueues(client)
    problems: list[Problem] = []
    collides = collision(queues, endpoint)
    if collides is not None:
        problems.append(Problem(endpoint.name, collides, "use another name"))
    found: dict[QueueRef, Mapping[str, str]] = {}
    for ref in endpoint.queues:
        try:
            found[ref] = queues.attributes(queues.url(ref))
        except QueueMissing:
            remedy = f"sqsdelay endpoint create {endpoint.name}"
            problems.append(Problem(ref.name, "it does not exist", remedy))
    if endpoint.delay_queue in found:
        name, attributes = endpoint.delay_queue.name, found[endpoint.delay_queue]
        problems.extend(delay_queue_problems(name, attributes, hop_seconds=hop_seconds))
    if endpoint.fifo and endpoint.due_queue in found:
        problems.extend(waiting_problems(endpoint.due_queue.name, found[endpoint.due_queue]))
    problems.extend(size_problems(endpoint, found))
    return problems


def size_problems(
    endpoint: Endpoint, found: Mapping[QueueRef, Mapping[str, str]]
) -> Iterator[Problem]:
    """Queues that take less than SQS does, and what that means for the endpoint. ``found``: the attributes of
    those of its queues that are there."""
    most = limits.MAX_MESSAGE_BYTES
    for ref, attributes in found.items():
        limit = limit_of(attributes)
        if limit < most:
            meaning = "larger ones are refused when they are sent, or go to the error queue"
            if ref == endpoint.error_queue:
                meaning = "a larger one that cannot be delivered stays where it is, and is lost in 14 days"
            text = f"it takes messages of {limit} bytes (its {LIMIT}), SQS takes {most}: {meaning}"
            yield Problem(ref.name, text, _set(ref.name, LIMIT, most), fatal=False)


def delay_queue_problems(
    name: str, attributes: Mapping[str, str], *, hop_seconds: int
) -> Iterator[Problem]:
    """What NServiceBus demands of a delay queue, then what the relay needs besides."""
    delay = int(attributes.get("DelaySeconds", "0"))
    if delay < hop_seconds:
        text = f"its delay of {delay} s is shorter than the hop of {hop_seconds} s"
        fix = _set(name, "DelaySeconds", hop_seconds)
        yield Problem(name, text, f"{fix}, or use a hop of {delay} s (--hop {delay})")
    yield from waiting_problems(name, attributes)
    if attributes.get("FifoThroughputLimit") != "perMessageGroupId":
        text = "it is not high-throughput FIFO, which limits it to 300 calls per second in total"
        fix = _set(name, "DeduplicationScope", "messageGroup")
        fix += ",FifoThroughputLimit=perMessageGroupId"
        yield Problem(name, text, fix, fatal=False)


def waiting_problems(name: str, attributes: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with a queue in which messages wait: the delay queue, or the due queue."""
    retention = int(attributes.get("MessageRetentionPeriod", "0"))
    least = limits.MIN_DELAY_QUEUE_RETENTION_SECONDS
    if retention < least:
        text = f"it keeps messages {retention} s, less than {least} s (4 days)"
        yield Problem(
            name, text, _set(name, "MessageRetentionPeriod", limits.MAX_RETENTION_SECONDS)
        )
    if attributes.get("RedrivePolicy"):
        text = "it has a redrive policy, which would remove messages that are only waiting"
        yield Problem(name, text, _set(name, "RedrivePolicy", '""'))
    visibility = int(attributes.get("VisibilityTimeout", "0"))
    least, most = limits.FUNCTION_TIMEOUT_SECONDS, limits.DEDUPLICATION_INTERVAL_SECONDS
    if not least <= visibility < most:
        text = (
            f"its visibility timeout of {visibility} s is not between {least} s (the time for a batch) "
            f"and {most} s (the deduplication interval)"
        )
        fix = _set(name, "VisibilityTimeout", limits.DELAY_QUEUE_VISIBILITY_SECONDS)
        yield Problem(name, text, fix, fatal=False)


def refuse(problems: Iterable[Problem]) -> None:
    """Raise for what is fatal, log the rest."""
    fatal = []
    for problem in problems:
        text = f"{problem.subject}: {problem.text}; fix: {problem.remedy}"
        if problem.fatal:
            fatal.append(text)
        else:
            logger.warning(text)
    if fatal:
        raise ConfigurationError("; ".join(fatal))


def checked_relay(
    queues: Queues, endpoint: Endpoint, settings: RelaySettings, *, kind: type[Relay] = Relay
) -> Relay:
    """A relay for the delay queue as it is deployed; worker and function start with it. ``kind``: a
    `ForwardingRelay` where what is to be parked goes through the parking queue. Raises ConfigurationError:
    the delay queue is unsuitable, and the remedy; or another endpoint shares it; QueueMissing,
    QueueUnavailable: it cannot be asked; SchemaMismatch: the store of a `ForwardingRelay` is of another
    version."""
    refuse_collision(queues, endpoint)
    name = endpoint.delay_queue.name
    attributes = queues.attributes(queues.url(endpoint.delay_queue))
    refuse(delay_queue_problems(name, attributes, hop_seconds=settings.hop_seconds))
    # Requeueing costs what the queue's delay is, whatever the setting says.
    return kind(queues, endpoint, replace(settings, hop_seconds=int(attributes["DelaySeconds"])))


def _set(name: str, attribute: str, value: object) -> str:
    return (
        f"aws sqs set-queue-attributes --queue-url $(aws sqs get-queue-url --queue-name {name} "
        f"--output text) --attributes {attribute}={value}"
    )
