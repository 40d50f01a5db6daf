"""`unrestricted`: a boto3 SQS client, resource or queue whose ``DelaySeconds`` has no limit."""

from __future__ import annotations

import threading
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, cast

from boto3.resources.base import ServiceResource
from botocore.client import BaseClient
from botocore.validate import validate_parameters

from sqsdelay.boto3_client.sends import LongDelays
from sqsdelay.boto3_client.witness import Witness
from sqsdelay.errors import ConfigurationError
from sqsdelay.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS, StoreOf
from sqsdelay.sqs.sender import DelaySender

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.service_resource import Queue, SQSServiceResource

    from sqsdelay.ledger.events import Ledger
    from sqsdelay.ports.queues import LargeBodies
    from sqsdelay.ports.stores import DelayedMessageStore

Boto3 = TypeVar("Boto3", "SQSClient", "SQSServiceResource", "Queue")


def unrestricted(
    client: Boto3,
    *,
    hop_seconds: int = DEFAULT_HOP_SECONDS,
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS,
    store: DelayedMessageStore | StoreOf | None = None,
    park_after_seconds: int = DEFAULT_PARK_AFTER_SECONDS,
    large_bodies: LargeBodies | None = None,
    ledger: Ledger | None = None,
) -> Boto3:
    """The client, with ``DelaySeconds`` of any length in ``send_message`` and ``send_message_batch``.

    It is an instance of a subclass of the client's own class and shares all that the client has: its
    connections, credentials, ``meta``, event hooks and exception classes. A subclass, and no object
    that passes calls on, so that ``isinstance``, paginators, waiters, botocore's ``Stubber``, tracing
    libraries and type checkers see an SQS client. The client that was given is not changed, nor is
    any class of boto3's.

    A message whose delay a message timer can hold is passed on untouched. Others go as `DelaySender`
    sends them, and are answered in boto3's shape; ``docs/boto3.md`` says what the fields hold.
    Errors are boto3's: a ``ClientError`` with SQS's code, its ``__cause__`` the error of sqsdelay's.

    Args:
        client: a boto3 SQS client, or an SQS resource (the service, a queue): then all that is
            reached from it sends so too. One that is unrestricted gets these settings instead.
        hop_seconds, max_delay_seconds, store, park_after_seconds, large_bodies: as for `DelaySender`.
        ledger: where to record the messages sent with long delays.

    Raises:
        ConfigurationError: no SQS client or resource; a setting out of range.
    """
    settings = {
        "hop_seconds": hop_seconds,
        "max_delay_seconds": max_delay_seconds,
        "store": store,
        "park_after_seconds": park_after_seconds,
        "large_bodies": large_bodies,
        "ledger": ledger,
    }
    given: Any = client
    if iscoroutinefunction(getattr(given, "_make_api_call", None)):
        raise ConfigurationError(f"{given!r} is asynchronous; give a client of boto3's")
    if isinstance(given, ServiceResource) and given.meta.service_name == "sqs":
        return cast(Boto3, _with_client(given, _unrestricted_client(given.meta.client, settings)))
    if isinstance(given, BaseClient) and given.meta.service_model.service_name == "sqs":
        return cast(Boto3, _unrestricted_client(given, settings))
    raise ConfigurationError(
        f"{given!r} is no SQS client; give boto3.client('sqs'), boto3.resource('sqs') or its Queue"
    )


class UnrestrictedClient:
    """What is put before a client's own class."""

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


def _unrestricted_client(client: Any, settings: dict[str, Any]) -> Any:
    witness = _derived(Witness, client, _seen=threading.local())
    # One thread: what SQS answered is noted per thread, and a call's batches are few.
    sender = DelaySender(witness, concurrency=1, **settings)
    long_delays = LongDelays(
        sender,
        witness,
        above_seconds=settings["hop_seconds"],
        any_size=settings["large_bodies"] is not None,
    )
    return _derived(UnrestrictedClient, client, _long_delays=long_delays)


def _derived(behaviour: type, client: Any, **own: Any) -> Any:
    """A client like the one given, with a behaviour before that of its class of boto3's."""
    ours = (UnrestrictedClient, Witness)
    boto3s = next(kind for kind in type(client).__mro__ if not issubclass(kind, ours))
    kind: Any = type(behaviour.__name__, (behaviour, boto3s), {})
    derived = kind.__new__(kind)
    derived.__dict__.update(client.__dict__, **own)
    return derived


def _with_client(resource: Any, client: Any) -> Any:
    """The same resource, over another client; what was loaded of it stays."""
    identifiers = [getattr(resource, name) for name in resource.meta.identifiers]
    copied = type(resource)(*identifiers, client=client)
    copied.meta.data = resource.meta.data
    return copied
