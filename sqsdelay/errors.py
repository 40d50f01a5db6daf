"""Every error sqsdelay raises: one base, and messages that state the value, the limit, the remedy."""

from __future__ import annotations

from typing import Any


class SqsDelayError(Exception):
    """Base of all errors raised by sqsdelay.

    Args:
        text: what happened, and the remedy. Of a value that cannot be used: ``limit; remedy`` or the remedy.
        given: the argument that cannot be used, and its value; then the text begins with both.

    Attributes:
        argument: its name, empty where it is not about one; other surfaces have other names for it.
        value: its value.
        limit: what is wrong with it, empty where the remedy tells.
        remedy: what to give instead.
    """

    def __init__(self, text: object = "", /, **given: object) -> None:
        self.argument, self.value = next(iter(given.items()), ("", None))
        self.limit, _, self.remedy = str(text if given else "").rpartition("; ")
        between = " " if self.limit else "; "
        super().__init__(f"{self.argument}={self.value!r}{between}{text}" if given else text)


class InvalidDelay(SqsDelayError, ValueError):
    """A delay or due time that cannot be honoured (negative, not a number, no time zone, too far)."""


class DelayTooLong(InvalidDelay):
    """More than a message timer can hold, with unrestricted delays switched off; or more than RabbitMQ's
    28 delay levels can hold."""


class InvalidEndpoint(SqsDelayError, ValueError):
    """An endpoint that is not a usable queue name, URL or ARN."""


class InvalidMessage(SqsDelayError, ValueError):
    """A message SQS would refuse, found before anything is sent."""


class MessageConflict(InvalidMessage):
    """The store holds another message with this id: its body, attributes or due time differ."""


class MessageTooLarge(InvalidMessage):
    """Body and attributes together exceed the size limit of a message."""


class TooManyAttributes(InvalidMessage):
    """More message attributes than SQS takes, sqsdelay's own included."""


class MalformedMessage(SqsDelayError, ValueError):
    """A received message whose delay attributes are missing, unreadable or contradictory."""


class MalformedEvent(SqsDelayError, ValueError):
    """A line that is not a ledger event, or of a version that this sqsdelay cannot read."""


class ConfigurationError(SqsDelayError):
    """Settings that contradict each other or the deployed queues; nothing was started."""


class InvalidSetting(ConfigurationError):
    """The value of a setting that cannot be used, whatever is deployed. The command line ends with 2."""


class NoStore(ConfigurationError):
    """Listing, cancelling or moving waiting messages requires a delayed message store."""


class QueueMissing(SqsDelayError):
    """A queue that should exist does not."""


class DelayQueueMissing(QueueMissing):
    """The endpoint has no delay queue, so it does not accept delays above 900 seconds (yet)."""


class QueueUnavailable(SqsDelayError):
    """The queue service could not be reached, throttled us or denied access: try again later."""


class QueueUnreachable(QueueUnavailable):
    """Nothing answered, or something that is not SQS; no further calls are made meanwhile."""


class StoreError(SqsDelayError):
    """A delayed message store failed; nothing that was asked for has happened."""


class StoreUnavailable(StoreError):
    """The store could not be reached, is locked or throttled us: try again later."""


class StoredInPart(StoreUnavailable):
    """Some messages of one call were stored, and the store then throttled us or was lost.

    Attributes:
        outcomes: for each message, in order: whether it is new, or why it was not stored.
    """

    def __init__(self, text: str, outcomes: list[bool | StoreError]) -> None:
        super().__init__(text)
        self.outcomes = outcomes


class ReadInPart(StoreUnavailable):
    """Amendments that were read (``found``, by message id), and ids whose could not be (``unread``)."""

    def __init__(self, text: str, found: dict[str, Any], unread: list[str]) -> None:
        super().__init__(text)
        self.found, self.unread = found, unread


class StoreMissing(StoreError):
    """The store's table does not exist: it was not set up, or the name is wrong."""


class SchemaMismatch(StoreError):
    """The store's table has an older or newer schema version than this sqsdelay supports."""


class BodyStoreUnavailable(SqsDelayError):
    """A large body could not be stored or read: no connection, or denied; nothing was sent."""


class BodyStoreMissing(SqsDelayError):
    """The bucket for large bodies does not exist; nothing was sent."""


class BodyMissing(SqsDelayError):
    """The large body a message points to is gone; the message was left where it is."""


class DeliveryFailed(SqsDelayError):
    """A ``deliver`` callback raised; its own error is the cause."""


class CriticalError(SqsDelayError):
    """A circuit breaker triggered: the failure persists, and someone must look into it."""


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
    """Some rows of a job could not be sent and there was nowhere to keep them; the others were sent."""


class Unconfirmed(SqsDelayError):
    """The broker did not confirm the message, which may or may not have arrived. It was not sent again."""


class MissingExtra(SqsDelayError, ImportError):
    """An optional part of sqsdelay that is not installed."""
