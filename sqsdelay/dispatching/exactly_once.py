"""A destination inside the store's own database: its effect commits together with the removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.destinations import unreadable
from sqsdelay.errors import DeliveryFailed
from sqsdelay.ports.queues import Failure
from sqsdelay.ports.stores import Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """A destination inside the store's own database: what it writes commits with the removal.

    Args:
        deliver: given the open transaction (the driver's connection) and due messages, the earliest
            first. It writes their effect there and does not commit. If it raises, what it wrote is
            undone, the messages are tried one by one, and those that raise have failed.
        reject: given the transaction, a message that is out of retries, and the reason; it writes
            the message where a person will find it.
    """

    deliver: Callable[[Any, Sequence[StoredMessage]], None]
    reject: Callable[[Any, StoredMessage, str], None]

    def send(self, claim: Claim) -> list[Failure | None]:
        """Deliver the claim's messages together, or else one by one; a failure per message.

        A row of the store that is no message is not delivered, and has failed.

        Raises:
            StoreError: the transaction itself is broken; nothing has happened.
        """
        outcomes = [unreadable(message) for message in claim.messages]
        readable = [place for place, failure in enumerate(outcomes) if failure is None]
        if not readable:
            return outcomes
        messages = [claim.messages[place] for place in readable]
        together = _attempted(claim, self.deliver, messages)
        for place, message in zip(readable, messages, strict=True):
            if together is None or len(messages) == 1:
                outcomes[place] = together
            else:
                outcomes[place] = _attempted(claim, self.deliver, [message])
        return outcomes

    def send_to_error_queue(
        self, claim: Claim, messages: Sequence[tuple[StoredMessage, str]]
    ) -> list[Failure | None]:
        """Reject each message; a failure per message.

        Raises:
            StoreError: the transaction itself is broken; nothing has happened.
        """
        return [_attempted(claim, self.reject, message, reason) for message, reason in messages]


def _attempted(claim: Claim, effect: Callable[..., None], *arguments: Any) -> Failure | None:
    """Run a callback in the claim's transaction; undone, and the failure returned, if it raises."""
    raised: Exception | None = None
    try:
        with claim.attempt():
            try:
                effect(claim.transaction, *arguments)
            except Exception as error:
                raised = error
                raise
    except Exception as error:
        if error is not raised:
            # Not the callback: the transaction itself is broken.
            raise
        failed = DeliveryFailed(f"{type(error).__name__}: {error}")
        failed.__cause__ = error
        return Failure(type(error).__name__, failed, transient=True)
    return None
