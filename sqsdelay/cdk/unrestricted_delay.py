"""Unrestricted delays for one queue, as a construct for any CDK app."""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import Duration, RemovalPolicy, Token
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sqsdelay.cdk import queues_and_buckets, removal_guard, stores
from sqsdelay.cdk.function_names import MAX_DELAY_SECONDS_VARIABLE
from sqsdelay.cdk.functions import (
    DEFAULT_MAX_CONCURRENCY,
    DEFAULTS,
    FunctionSettings,
    Wiring,
    delay_consumer,
)
from sqsdelay.cdk.ledger import IN_S3 as LEDGER_IN_S3
from sqsdelay.cdk.ledger import S3Ledger
from sqsdelay.cdk.monitoring import Alarms, dashboard, of_endpoint
from sqsdelay.core.delay import check_hop, checked_max_delay
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS, ERROR_QUEUE_SUFFIX
from sqsdelay.errors import ConfigurationError, InvalidEndpoint, InvalidSetting
from sqsdelay.stores.dynamodb.dynamodb_store import DEFAULT_SHARDS, STANDARD

STORES: Final = (stores.DYNAMODB, stores.S3, stores.SCHEDULER)
"""The kinds of store that can be deployed."""

STORES_TO_USE: Final = f"{', '.join(STORES[:-1])} or {STORES[-1]}"
"""The same in an error's words."""


class UnrestrictedDelay(Construct):
    """Gives ``queue`` a delay queue, an error queue, the delay consumer, alarms and a dashboard.

    A FIFO queue also gets a due queue, where its message timers run.

    Args:
        queue: the destination, of the stack's account and region.
        hop_seconds: the delay queue's delivery delay, 1 to 900.
        max_delay_seconds: what is due later than that goes to the error queue; ten years when left
            out. Senders need the same setting to send farther.
        max_concurrency: batches the function has in hand at once, 2 to 1,000.
        alarm_topic: notified when an alarm starts.
        removal_policy: what happens to the queues, the store's table and the bucket, and what is
            in them, when removed.
        code: the functions' code; built from this checkout when left out.
        store: ``dynamodb`` and ``s3`` add a delayed message store to park in, with its dispatcher;
            ``scheduler`` a group of schedules, with a function that empties their queue. Left out, there
            is none of them, and a deployment that would take one away is refused; ``none`` gives it up.
        store_shards: over how many partitions of the store an hour's messages are spread; it can grow
            while messages wait.
        store_class: the store's table class, ``STANDARD`` or ``STANDARD_INFREQUENT_ACCESS``.
        large_bodies: adds a bucket for bodies that are too large for a message. Left out, there is
            none, and a deployment that would take one away is refused; False gives it up.
        due_queue: False gives up the due queue of a queue that was FIFO and no longer is; left
            out, such a deployment is refused.
        ledger: has the functions record what happens to each message: True in their logs, ``s3`` by a
            Firehose stream in a bucket, for as long as you like. Left out, they do not, and a deployment
            that would leave such a bucket is refused; False gives it up.
        ledger_bucket: the bucket of ``ledger="s3"``, which endpoints may share; made when left out.
        encryption_key: your KMS key for the queues, the store's table and the bucket. Those who
            are granted something here may use it; if it is imported, its policy has to let them.
        functions: memory, log retention, tracing and network of the functions.
        permissions_boundary: of every role made here.

    Raises:
        InvalidEndpoint: the queue's name is too long for our suffixes, or it is FIFO and has no name
            of its own.
        ConfigurationError: a hop or a longest delay out of range, an unknown kind of store or ledger.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        queue: sqs.IQueue,
        hop_seconds: int = DEFAULT_HOP_SECONDS,
        max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
        max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
        alarm_topic: sns.ITopic | None = None,
        removal_policy: RemovalPolicy = RemovalPolicy.RETAIN,
        code: lambda_.Code | None = None,
        store: str | None = None,
        store_shards: int = DEFAULT_SHARDS,
        store_class: str = STANDARD,
        large_bodies: bool | None = None,
        due_queue: bool | None = None,
        ledger: bool | str | None = None,
        ledger_bucket: s3.IBucket | None = None,
        encryption_key: kms.IKey | None = None,
        functions: FunctionSettings = DEFAULTS,
        permissions_boundary: iam.IManagedPolicy | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        endpoint = _name(queue)
        _check(queue, endpoint, hop_seconds, store)
        if isinstance(ledger, str) and ledger != LEDGER_IN_S3:
            raise ConfigurationError(
                f"ledger={ledger!r}; use {LEDGER_IN_S3!r} for a bucket, True for the functions' logs, or "
                "False for none"
            )
        if ledger_bucket is not None and ledger != LEDGER_IN_S3:
            raise ConfigurationError(
                f"a ledger's bucket is for ledger={LEDGER_IN_S3!r}; add that, or leave the bucket out"
            )
        left_out = {
            removal_guard.STORE: store not in (stores.DYNAMODB, removal_guard.NONE),
            removal_guard.S3_STORE: store not in (stores.S3, removal_guard.NONE),
            removal_guard.SCHEDULES: store not in (stores.SCHEDULER, removal_guard.NONE),
            removal_guard.LARGE_BODIES: large_bodies is None,
            removal_guard.LEDGER: ledger is None or ledger is True,
            removal_guard.DUE_QUEUE: due_queue is None and not queue.fifo,
        }
        parts = [part for part, is_left_out in left_out.items() if is_left_out]
        self.removal_guard = removal_guard.RemovalGuard(
            self, "RemovalGuard", left_out=parts, settings=functions
        )
        self.queue = queue
        self.hop_seconds = hop_seconds
        if permissions_boundary is not None:
            iam.PermissionsBoundary.of(self).apply(permissions_boundary)
        kept: dict[str, Any] = {"removal_policy": removal_policy, "encryption_key": encryption_key}
        self.delay_queue = queues_and_buckets.waiting_queue(
            self,
            "DelayQueue",
            endpoint,
            fifo=True,
            deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP,
            fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID,
            delivery_delay=Duration.seconds(hop_seconds),
            **kept,
        )
        read, name = "The last stop: nothing but a person reads it.", ERROR_QUEUE_SUFFIX
        self.error_queue = queues_and_buckets.EndpointQueue(
            self,
            "ErrorQueue",
            no_redrive=read,
            queue_name=queues_and_buckets.beside(endpoint, name),
            **kept,
        )
        self.due_queue = (
            queues_and_buckets.waiting_queue(self, "DueQueue", endpoint, **kept)
            if queue.fifo
            else None
        )
        self.ledger: S3Ledger | None = None
        if ledger == LEDGER_IN_S3:
            at: dict[str, Any] = {"bucket": ledger_bucket, "alarm_topic": alarm_topic}
            self.ledger = S3Ledger(self, "Ledger", endpoint=endpoint, **at, **kept)
        longest = {}
        if checked_max_delay(max_delay_seconds) != DEFAULT_MAX_DELAY_SECONDS:
            longest[MAX_DELAY_SECONDS_VARIABLE] = str(max_delay_seconds)
        wiring = Wiring(
            endpoint=endpoint,
            queue=queue,
            delay_queue=self.delay_queue,
            error_queue=self.error_queue,
            due_queue=self.due_queue,
            hop_seconds=hop_seconds,
            alarm_topic=alarm_topic,
            code=code,
            ledger=self.ledger or bool(ledger),
            settings=functions,
            variables=longest,
            **kept,
        )
        self.store: stores.MessageStore | None = None
        self.s3_store: stores.S3MessageStore | None = None
        self.schedules: stores.ScheduleGroup | None = None
        if store == stores.DYNAMODB:
            self.store = stores.MessageStore(
                self, "Store", wiring, shards=store_shards, table_class=store_class
            )
        elif store == stores.S3:
            self.s3_store = stores.S3MessageStore(self, "S3Store", wiring)
        elif store == stores.SCHEDULER:
            self.schedules = stores.ScheduleGroup(self, "Schedules", wiring)
        # The functions pass pointers on and read no body: they are granted nothing on it.
        self.body_bucket = (
            queues_and_buckets.BodyBucket(self, "Bodies", **kept) if large_bodies else None
        )
        place = self.store or self.s3_store or self.schedules
        self.function = delay_consumer(self, wiring, max_concurrency, place).function
        # Refused before the delay consumer forgets a store, and not after.
        self.function.node.add_dependency(self.removal_guard.parts)
        dispatched, parking = self.store or self.s3_store, self.s3_store or self.schedules
        waiting = {"delay": self.delay_queue, "error": self.error_queue, "due": self.due_queue}
        waiting["parking"] = parking.parking_queue if parking else None
        self.alarms = Alarms(
            self, of_endpoint(waiting, self.function, hop_seconds), topic=alarm_topic
        )
        dispatcher = dispatched.function if dispatched else None
        alarms = self.alarms.all + (place.alarms.all if place else [])
        dashboard(self, endpoint, waiting, self.function, dispatcher, alarms)

    def grant_send(self, producer: iam.IGrantable) -> iam.Grant:
        """Let ``producer`` send with any delay: find, ask and send to the queue and the delay queue.

        A FIFO endpoint's due queue too. With a bucket for large bodies, also put bodies there."""
        sent_to = [self.queue, self.delay_queue, *([self.due_queue] if self.due_queue else [])]
        if self.body_bucket is not None:
            self.body_bucket.grant_offload(producer)
        queues_and_buckets.grant_queues(producer, sent_to)
        return iam.Grant.add_to_principal(
            grantee=producer,
            # Attributes: what a queue takes, and the hop where a sender counts on a shorter one.
            actions=["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"],
            resource_arns=[queue.queue_arn for queue in sent_to],
            scope=self,
        )


def _name(queue: sqs.IQueue) -> str:
    """The queue's name: as it was given where it was, a token where CloudFormation makes one up."""
    resource = queue.node.default_child
    given = resource.queue_name if isinstance(resource, sqs.CfnQueue) else None
    return queue.queue_name if given is None or Token.is_unresolved(given) else given


def _check(queue: sqs.IQueue, endpoint: str, hop_seconds: int, store: str | None) -> None:
    check_hop(hop_seconds)
    if store is not None and store not in (*STORES, removal_guard.NONE):
        raise InvalidSetting(
            f"store={store!r}; use {STORES_TO_USE}, leave it out, or use {removal_guard.NONE} to give one up"
        )
    if queue.fifo and Token.is_unresolved(endpoint):
        raise InvalidEndpoint(
            f"FIFO queue {queue.node.path} has no explicit name to derive other queue names "
            "from; give it a queue_name ending in '.fifo'"
        )
    if not Token.is_unresolved(endpoint):
        Endpoint.parse(endpoint)
