"""Traces: a span around a send, and a trace of its own for each delivery."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Delivery(Protocol):
    """A delivery on its way."""

    @property
    def header(self) -> str | None:
        """The trace header of the message as it arrives; None leaves it to be made up."""

    def end(self, error: str | None = None) -> None:
        """The destination has the message, or why it has not."""


class Tracing(Protocol):
    """Makes spans. Thread-safe; raises nothing."""

    def sending(self, endpoint: str) -> AbstractContextManager[str | None]:
        """A span around the send of one or more messages.

        Gives the trace header for those whose sender named none; None where nothing is traced.
        """

    def delivering(
        self, endpoint: str, message_id: str, *, sent_with: str | None, due_ms: int | None
    ) -> Delivery:
        """The first span of a new trace, linked to the span that the message was sent in.

        Args:
            endpoint: the destination's name.
            sent_with: the trace header it was sent with.
            due_ms: when it is due, epoch milliseconds.
        """
