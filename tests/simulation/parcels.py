"""What is sent in a scenario: messages told by their bodies, with all that must arrive unaltered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

from sqsdelay.core.delay import delay_ms, due_at_ms, utc
from sqsdelay.core.message import MESSAGE_ID, Attribute, Message, attributes_of, text_of
from sqsdelay.sending.sender import QueueSender

_ATTEMPTS = 5
"""Sends of a message whose send raised; every third such message is given up after the first."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A message on its way. ``due_ms`` is the earliest it may be due, by the broker's clock.

    ``accepted`` is False while no send of it has returned without an error.
    """

    message: Message
    due_ms: int
    accepted: bool = False

    @property
    def key(self) -> str:
        return key_of(self.message.body)

    def altered(self, body: str, attributes: dict[str, Attribute]) -> bool:
        """Whether what arrived is not what was sent."""
        own = {
            name: value for name, value in attributes.items() if not name.startswith("sqsdelay.")
        }
        named = text_of(attributes, MESSAGE_ID)
        return (body, own, named) != (
            self.message.body,
            attributes_of(self.message.attributes),
            self.message.message_id,
        )


def key_of(body: str) -> str:
    """The key of the parcel with this body."""
    return str(json.loads(body)["key"])


def parcels(
    count: int,
    delays_ms: tuple[int, int],
    *,
    seed: int,
    now_ms: int,
    message_group_id: str | None = None,
) -> list[Parcel]:
    """Messages with delays of that range, half of them by delay and half by due time."""
    random = Random(seed)
    made = []
    for number in range(count):
        message = _message(f"s{seed}-m{number}", random.randint(*delays_ms), now_ms, random)
        message = replace(message, message_group_id=message_group_id)
        made.append(Parcel(message=message, due_ms=0))
    return made


def _message(key: str, wait_ms: int, now_ms: int, random: Random) -> Message:
    absolute = random.random() < 0.5
    return Message(
        json.dumps({"key": key, "text": "grün " * random.randint(1, 40)}, ensure_ascii=False),
        delay=None if absolute else timedelta(milliseconds=wait_ms),
        due_at=utc(now_ms + wait_ms) if absolute else None,
        attributes={
            "tenant": f"acme-{random.randint(1, 9)}",
            "number": {"DataType": "Number.int", "StringValue": str(random.getrandbits(60))},
            "raw": random.randbytes(12),
        },
        message_id=key,
    )


def send(
    sender: QueueSender, endpoint: str, wanted: Sequence[Parcel], now_ms: Callable[[], int]
) -> list[Parcel]:
    """Send them, those that raised again with their id; tells which were accepted.

    A send that raised may have arrived all the same; the sender is idempotent, so that it is one message.
    """
    known: dict[str, Parcel] = {}
    waiting = list(wanted)
    for attempt in range(_ATTEMPTS):
        started_ms = now_ms()
        # The first send of a message sets when it is due, if the queue took it.
        tried = [known.get(p.key) or _due(p, started_ms) for p in waiting]
        results = sender.send_many(endpoint, [parcel.message for parcel in tried])
        for parcel, result in zip(tried, results, strict=True):
            known[parcel.key] = replace(parcel, accepted=result.error is None)
        waiting = [p for p in tried if not known[p.key].accepted]
        if attempt == 0:
            waiting = [p for number, p in enumerate(waiting) if number % 3]
        if not waiting:
            break
    return [known[parcel.key] for parcel in wanted]


def _due(parcel: Parcel, now_ms: int) -> Parcel:
    message = parcel.message
    if message.due_at is not None:
        return replace(parcel, due_ms=due_at_ms(message.due_at))
    return replace(parcel, due_ms=now_ms + delay_ms(message.delay or 0))
