"""Forwarding: copies to be parked go to the parking queue, many in one message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import OutgoingMessage, full_batches, size_of, text_of
from sqsdelay.core.received_message import ReceivedMessage, as_lambda_record, from_lambda_event
from sqsdelay.core.schedule_input import COPY, record_of
from sqsdelay.errors import MalformedMessage, SqsDelayError
from sqsdelay.ports.queues import Failure, Queues

VERSION: Final = 1


def packed(copy: ReceivedMessage) -> str:
    """One copy as text; `group_of` makes a body of such texts."""
    return json.dumps(as_lambda_record(copy), ensure_ascii=False, separators=(",", ":"))


def group_of(packed_copies: Iterable[str]) -> str:
    """A body of copies that were `packed`."""
    return f'{{"version":{VERSION},"copies":[{",".join(packed_copies)}]}}'


def unpacked(group: ReceivedMessage) -> Sequence[ReceivedMessage]:
    """The copies of a group, or the one that a schedule sent, as it was received, received as often.

    A group that cannot be read is one copy, which says so in ``unreadable``: it is rejected whole.
    """
    try:
        if COPY in group.attributes:
            return [_copy(record_of(group.body, text_of(group.attributes, COPY)), group)]
        found = json.loads(group.body)
        if found["version"] != VERSION:
            raise MalformedMessage(f"version {found['version']!r}; this sqsdelay reads {VERSION}")
        copies = [_copy(record, group) for record in found["copies"]]
    except (ValueError, TypeError, KeyError, RecursionError, MalformedMessage) as error:
        return [replace(group, unreadable=f"not a group of copies: {error!r}"[:200])]
    return copies


def _copy(record: dict[str, Any], group: ReceivedMessage) -> ReceivedMessage:
    received = {**record, "receiptHandle": group.receipt_handle}
    copy = from_lambda_event(received, received_at=group.received_at)
    return replace(copy, receive_count=group.receive_count)


GROUP_BYTES: Final = 64 * 1024
"""Of a group's body: SQS bills each 64 KiB of a message as one request (SQS pricing)."""

_FRAME_BYTES: Final = len(group_of(()))


class Forwarding:
    """Sends groups of copies to an endpoint's parking queue.

    A function is given ten copies of a delay queue at a time. The store that it would park them in takes
    as much for ten as for thousands.
    """

    def __init__(self, queues: Queues, endpoint: Endpoint) -> None:
        self._queues = queues
        self._target = endpoint.parking_queue

    def takes(self, copy: ReceivedMessage) -> bool:
        """Whether a copy is small enough: for a large one the queue would cost more than a store."""
        return _FRAME_BYTES + size_of(packed(copy), {}) <= GROUP_BYTES

    def forward(self, copies: Sequence[ReceivedMessage]) -> list[Failure | None]:
        """Send them in as few groups as hold them; None per copy that the queue has."""
        groups = list(_groups(copies))
        try:
            url = self._queues.url(self._target)
        except SqsDelayError as error:
            return [Failure(type(error).__name__, error, transient=True)] * len(copies)
        answers: list[Failure | None] = []
        for batch in full_batches(groups, target=lambda _: url, size=lambda group: group[1].size):
            sent = self._queues.send_batch(url, [entry for _, entry in batch])
            for (count, _), outcome in zip(batch, sent, strict=True):
                answers += [outcome if isinstance(outcome, Failure) else None] * count
        return answers


def _groups(copies: Sequence[ReceivedMessage]) -> Iterator[tuple[int, OutgoingMessage]]:
    """How many copies, in order, each message holds, and the message."""
    group: list[str] = []
    size = _FRAME_BYTES
    for copy in copies:
        text = packed(copy)
        more = size_of(text, {}) + 1
        if group and size + more > GROUP_BYTES:
            yield len(group), _entry(group)
            group, size = [], _FRAME_BYTES
        group.append(text)
        size += more
    if group:
        yield len(group), _entry(group)


def _entry(group: Sequence[str]) -> OutgoingMessage:
    body = group_of(group)
    return OutgoingMessage(body=body, attributes={}, size=size_of(body, {}), delay_seconds=0)
