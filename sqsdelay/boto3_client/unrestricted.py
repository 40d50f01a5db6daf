"""`unrestricted`: a boto3 SQS client, resource or queue whose ``DelaySeconds`` has no limit."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, cast

from boto3.resources.base import ServiceResource
from botocore.client import BaseClient
from botocore.validate import validate_parameters

from sqsdelay.boto3_client.sends import LongDelays
from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, StoreOf, parking_settings
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.service_resource import Queue, SQSServiceResource

    from sqsdelay.ledger.events import Ledger
    from sqsdelay.ports.queues import LargeBodies
    from sqsdelay.ports.stores import ParkingPlace
    from sqsdelay.ports.tracing import Tracing

Boto3 = TypeVar("Boto3", "SQSClient", "SQSServiceResource", "Queue")


def unrestricted(
    client: Boto3,
    *,
    hop_seconds: int = DEFAULT_HOP_SECONDS,
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
    store: ParkingPlace | StoreOf | None = None,
    park_after_seconds: int = DEFAULT_PARK_AFTER_SECONDS,
    large_bodies: LargeBodies | None = None,
    ledger: Ledger | None = None,
    tracing: Tracing | None = None,
) -> Boto3:
    """The client, with ``DelaySeconds`` of any length in ``send_message`` and ``send_message_batch``.

    It is an instance of a subclass of the client's own class and shares all that the client has: its
    connections, credentials, ``meta``, event hooks and exception classes. It is a subclass, not an
    object that passes calls on, so that ``isinstance``, paginators, waiters, botocore's ``Stubber``, tracing
    libraries and type checkers see an SQS client. Neither the client that you pass
    nor any class of boto3's is changed.

    A message whose delay fits a message timer is passed on untouched. `DelaySender` sends the
    others, and the response has boto3's shape; ``docs/boto3.md`` says what the fields hold.
    Errors are boto3's: a ``ClientError`` with SQS's code, and sqsdelay's error as its ``__cause__``.

    Args:
        client: a boto3 SQS client, or an SQS resource (the service, a queue): then everything
            reached from it sends in this way too. An unrestricted one gets these settings instead.
        hop_seconds, max_delay_seconds, store, park_after_seconds, large_bodies: as for `DelaySender`.
        ledger: where to record the messages sent with long delays.
        tracing: traces the sends of these messages.

    Raises:
        ConfigurationError: not an SQS client or resource; a setting out of range.
    """
    settings = SenderSettings(
        hop_seconds=hop_seconds,
        max_delay_seconds=max_delay_seconds,
        concurrency=1,  # A call's batches are few.
        parking=parking_settings(store, park_after_seconds),
        large_bodies=large_bodies,
        ledger=ledger,
        tracing=tracing,
    )
    given: Any = client
    if iscoroutinefunction(getattr(given, "_make_api_call", None)):
        raise ConfigurationError(f"{given!r} is asynchronous; give a boto3 client")
    if isinstance(given, ServiceResource) and given.meta.service_name == "sqs":
        return cast(Boto3, _with_client(given, _unrestricted_client(given.meta.client, settings)))
    if isinstance(given, BaseClient) and given.meta.service_model.service_name == "sqs":
        return cast(Boto3, _unrestricted_client(given, settings))
    raise ConfigurationError(
        f"{given!r} is not an SQS client; give boto3.client('sqs'), boto3.resource('sqs') or its Queue"
    )


class UnrestrictedClient:
    """What is put before a client's own class."""

    _plain: Any
    _long_delays: LongDelays

    def send_message(self, *args: Any, **kwargs: Any) -> Any:
        plain: Any = super()
        # Arguments without names boto3 refuses itself.
        if args or not self._long_delays.concern(kwargs.get("QueueUrl"), kwargs):
            return plain.send_message(*args, **kwargs)
        self._validate("SendMessage", kwargs)
        return self._long_delays.send(self, kwargs)

    def send_message_batch(self, *args: Any, **kwargs: Any) -> Any:
        plain: Any = super()
        entries = kwargs.get("Entries")
        given = entries if isinstance(entries, list | tuple) else ()
        queue_url = kwargs.get("QueueUrl")
        if args or not any(self._long_delays.concern(queue_url, entry) for entry in given):
            return plain.send_message_batch(*args, **kwargs)
        self._validate("SendMessageBatch", kwargs)
        return self._long_delays.send_batch(self, kwargs, plain.send_message_batch)

    def _validate(self, operation: str, kwargs: dict[str, Any]) -> None:
        """As boto3 does before a request, even where the client has that switched off."""
        model = cast(Any, self).meta.service_model.operation_model(operation)
        validate_parameters(kwargs, model.input_shape)


def _unrestricted_client(client: Any, settings: SenderSettings) -> Any:
    """A client like the one given, with our behaviour before that of its class of boto3's."""
    plain = client.__dict__.get("_plain", client)
    long_delays = LongDelays(
        QueueSender(SqsQueues(plain, traced=True), settings),
        above_seconds=settings.hop_seconds,
        any_size=settings.large_bodies is not None,
    )
    kind: Any = type(UnrestrictedClient.__name__, (UnrestrictedClient, type(plain)), {})
    derived = kind.__new__(kind)
    derived.__dict__.update(client.__dict__, _plain=plain, _long_delays=long_delays)
    return derived


def _with_client(resource: Any, client: Any) -> Any:
    """The same resource, over another client; what was loaded of it stays."""
    identifiers = [getattr(resource, name) for name in resource.meta.identifiers]
    copied = type(resource)(*identifiers, client=client)
    copied.meta.data = resource.meta.data
    return copied
