"""Every error sqsdelay raises: one base, and messages that state the value, the limit, the remedy."""

from __future__ import annotations


class SqsDelayError(Exception):
    """Base of all errors raised by sqsdelay."""


class InvalidDelay(SqsDelayError, ValueError):
    """A delay or due time that cannot be honoured (negative, not a number, no time zone, too far)."""


class DelayTooLong(InvalidDelay):
    """More than a message timer can hold, with unrestricted delays switched off; or more than RabbitMQ's
    28 delay levels can hold."""


class InvalidEndpoint(SqsDelayError, ValueError):
    """An endpoint that is no usable queue name, URL or ARN."""


class InvalidMessage(SqsDelayError, ValueError):
    """A message SQS would refuse, found before anything is sent."""


class MessageConflict(InvalidMessage):
    """Another message of this id waits in the store: with another body, attributes or due time."""


class MessageTooLarge(InvalidMessage):
    """Body and attributes together exceed the size limit of a message."""


class TooManyAttributes(InvalidMessage):
    """More message attributes than SQS takes, sqsdelay's own included."""


class MalformedMessage(SqsDelayError, ValueError):
    """A received message whose delay attributes are missing, unreadable or contradictory."""


class MalformedEvent(SqsDelayError, ValueError):
    """A line that is no event of a ledger, or of a version this sqsdelay does not read."""


class ConfigurationError(SqsDelayError):
    """Settings that do not fit each other or the deployed queues; nothing was started."""


class NoStore(ConfigurationError):
    """Waiting messages cannot be listed, cancelled or moved without a delayed message store."""


class QueueMissing(SqsDelayError):
    """A queue that should exist does not."""


class DelayQueueMissing(QueueMissing):
    """The endpoint has no delay queue: it does not take delays above 900 seconds (yet)."""


class QueueUnavailable(SqsDelayError):
    """The queue service could not be reached, throttled us or denied access: try again later."""


class QueueUnreachable(QueueUnavailable):
    """Nothing answered, or nothing that is SQS: it is not asked anything else meanwhile."""


class StoreError(SqsDelayError):
    """A delayed message store failed; nothing of what was asked has happened."""


class StoreUnavailable(StoreError):
    """The store could not be reached, is locked or throttled us: try again later."""


class StoreMissing(StoreError):
    """The store's table does not exist: it was not set up, or the name is wrong."""


class SchemaMismatch(StoreError):
    """The store's table is of an older or a newer schema version than this sqsdelay works on."""


class BodyStoreUnavailable(SqsDelayError):
    """A large body could not be kept or read: no connection, or denied; nothing was sent."""


class BodyStoreMissing(SqsDelayError):
    """The bucket for large bodies does not exist; nothing was sent."""


class BodyMissing(SqsDelayError):
    """The large body a message points to is gone; the message was left where it is."""


class DeliveryFailed(SqsDelayError):
    """A ``deliver`` callback raised; its own error is the cause."""


class CriticalError(SqsDelayError):
    """A circuit breaker triggered: the disturbance lasts, and someone must look at it."""


class SendFailed(SqsDelayError):
    """The queue service refused a message.

    Attributes:
        code: the service's error code, e.g. ``InvalidMessageContents``.
        transient: True when the same send may succeed later.
    """

    def __init__(self, text: str, *, code: str, transient: bool) -> None:
        super().__init__(text)
        self.code = code
        self.transient = transient


class NotAllSent(SqsDelayError):
    """Some rows of a job could not be sent, and there was no place to keep them; the others were."""


class Unconfirmed(SqsDelayError):
    """The broker did not say whether it has the message: it may have it, or not. It was not repeated."""


class MissingExtra(SqsDelayError, ImportError):
    """An optional part of sqsdelay that is not installed."""
