"""A ledger in a file or a log, and what a receiver records there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqsdelay.core.delay import Clock, SystemClock, seconds_until
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import FIFO_SUFFIX
from sqsdelay.core.message import MESSAGE_ID, text_of
from sqsdelay.core.outgoing import was_due_ms
from sqsdelay.core.received_message import ReceivedMessage, from_boto3, from_lambda_event
from sqsdelay.errors import ConfigurationError
from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, record_safely, to_json

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


class FileLedger:
    """Appends JSON lines to a file on a local disk. Thread-safe, process-safe, can be pickled.

    The events of one call are one ``write`` to a file that is open for appending: the kernel keeps
    each together, whoever else appends. (Network file systems do not: there, one file per process.)
    The file is reopened each time, so it can be moved away at any moment, and a fresh one is
    begun. What was recorded survives the death of the process, though not of the machine: it is
    handed to the kernel, and not forced to the disk.

    Args:
        path: the file; made if it does not exist, in a directory that does.

    Raises:
        ConfigurationError: it cannot be opened for appending.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._torn = False
        try:
            self._append(b"")
        except OSError as error:
            raise ConfigurationError(
                f"ledger file {self.path}: {error.strerror}; name a file that can be written, in a "
                "directory that exists"
            ) from error

    def record(self, events: Sequence[Event]) -> None:
        """Append the events.

        Raises:
            OSError: the file cannot be written, or not all of the lines (the disk is full).
        """
        lines = "".join([to_json(event) + "\n" for event in events]).encode("ascii")
        # After a line that was cut off, a new one must not be glued to it.
        self._append(b"\n" + lines if self._torn else lines)

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self.path, _APPEND, 0o666)
        try:
            written = os.write(descriptor, data) if data else 0
        finally:
            os.close(descriptor)
        if written < len(data):
            self._torn = True
            raise OSError(f"{self.path} took {written} of {len(data)} bytes; is the disk full?")
        self._torn = False


class LoggerLedger:
    """Logs each event as one line of JSON. Thread-safe.

    Args:
        logger: one of its own is best, e.g. ``logging.getLogger("orders.ledger")``; its handlers
            say where the lines go, and should add nothing but, perhaps, a timestamp before them.
        level: of the lines; nothing is written while the logger is not enabled for it.
    """

    def __init__(self, logger: logging.Logger, *, level: int = logging.INFO) -> None:
        self._logger = logger
        self._level = level

    def record(self, events: Sequence[Event]) -> None:
        """Log the events."""
        if self._logger.isEnabledFor(self._level):
            for event in events:
                self._logger.log(self._level, "%s", to_json(event))


def record_received(
    ledger: Ledger | None,
    endpoint: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    clock: Clock | None = None,
) -> None:
    """Record messages that a worker received from an endpoint's destination queue. Never raises.

    Args:
        ledger: None does nothing.
        endpoint: the queue's name, URL or ARN.
        messages: what one ``receive_message`` returned, or the records of one Lambda event. Receive
            with ``MessageAttributeNames=["sqsdelay.*"]`` (or All) and
            ``MessageSystemAttributeNames=["ApproximateFirstReceiveTimestamp", "SentTimestamp"]``
            (or All): the id, the due time and the broker's times are in there. Without the latter
            lateness is not known.
        clock: the local clock, for messages without the broker's time.
    """
    if ledger is not None and messages:
        record_safely(ledger, _read(endpoint, messages, clock or SystemClock()))


def received_events(
    endpoint: str, copies: Sequence[ReceivedMessage], *, now_ms: int
) -> Iterator[Event]:
    """The events of copies that were received together. ``endpoint``: the endpoint's name. ``now_ms``: when a
    copy was received that does not bring the broker's time."""
    for copy in copies:
        yield Event(
            kind=EventKind.RECEIVED,
            at_ms=now_ms if copy.first_receive_ms is None else copy.first_receive_ms,
            endpoint=endpoint,
            message_id=text_of(copy.attributes, MESSAGE_ID) or copy.sqs_message_id,
            source=Source.RECEIVER,
            due_ms=was_due_ms(copy.attributes),
            batch=len(copies),
            late_ms=lateness_ms(copy, fifo=endpoint.endswith(FIFO_SUFFIX)),
            enqueued_ms=copy.sent_ms,
            sqs_message_id=copy.sqs_message_id,
        )


def lateness_ms(
    copy: ReceivedMessage, *, fifo: bool = False, due_ms: int | None = None
) -> int | None:
    """How long after its due time the destination queue showed the message; None if it cannot be known. A
    message timer cannot be read from a copy: it ends at the first whole second after the due time. ``fifo``:
    the destination is a FIFO queue, which takes no message timers. ``due_ms``: when a message was due that
    was not relayed, and does not say so."""
    due_ms = was_due_ms(copy.attributes) if due_ms is None else due_ms
    if due_ms is None or copy.first_receive_ms is None or copy.sent_ms is None:
        return None
    timer_ms = 0 if fifo else 1000 * seconds_until(due_ms, copy.sent_ms)
    return min(copy.sent_ms + timer_ms, copy.first_receive_ms) - due_ms


def waited_ms(copy: ReceivedMessage, *, fifo: bool = False) -> int | None:
    """How long the message then lay in the destination queue until it was first received; None if it
    cannot be known."""
    late_ms, due_ms = lateness_ms(copy, fifo=fifo), was_due_ms(copy.attributes)
    if late_ms is None or due_ms is None or copy.first_receive_ms is None:
        return None
    return copy.first_receive_ms - due_ms - late_ms


def _read(endpoint: str, messages: Sequence[Mapping[str, Any]], clock: Clock) -> Iterator[Event]:
    copies = [
        from_lambda_event(message, received_at=clock.monotonic())
        if "receiptHandle" in message
        else from_boto3(message, received_at=clock.monotonic())
        for message in messages
    ]
    yield from received_events(Endpoint.parse(endpoint).name, copies, now_ms=clock.now_ms())
