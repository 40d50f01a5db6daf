"""What a page shows of a message: the kind and the beginning of its body, and why it failed."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Self

from sqsdelay.core.message import Attribute
from sqsdelay.core.rejection import Rejection
from sqsdelay.operating.error_queue import NO_REASON

BODY_SHOWN: Final = 64 * 1024
"""Characters of a body that are sent to a browser."""
TEXT_KEPT: Final = 4096
"""Characters of a failed message's reason, and of each of its attributes, that are kept."""
_VARIES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\b[\w-]*\d[\w.:-]*")
"""Names in quotes, and words with a digit in them: ids, numbers, instants."""


def text_of(raw: bytes | str) -> str:
    """Text that a page can carry: what is no UTF-8, or half a character, as ``\\xff`` and ``\\ud800``."""
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")


def kind_of_body(body: str) -> str:
    """What a body looks like: JSON, XML, text, or no text at all; a long one by its ends."""
    ends = body[:BODY_SHOWN].lstrip()[:1] + body[-BODY_SHOWN:].rstrip()[-1:]
    if ends in ("{}", "[]"):
        try:
            if len(body) <= BODY_SHOWN:
                json.loads(body)
        except (ValueError, RecursionError):
            return "text"
    told = {"": "empty", "{}": "JSON", "[]": "JSON", "<>": "XML"}
    return told.get(ends) or ("binary" if "\\x" in body[:BODY_SHOWN] else "text")


class Body(NamedTuple):
    """A body: what it looks like, how many bytes it has, and its text, or the beginning of that."""

    kind: str
    size: int
    text: str
    cut: bool = False

    @classmethod
    def of(cls, raw: bytes | str) -> Self:
        """The whole body."""
        size = len(raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass"))
        text = text_of(raw)
        return cls(kind_of_body(text), size, text)


class Failed(NamedTuple):
    """A message of the error queue, without what no page shows: a thousand may have 1 MiB each.

    ``key`` is SQS's id of the copy, for two may have one message id; ``kind`` is the
    reason without the names and numbers in it: equal for messages that failed alike.
    """

    key: str
    message_id: str
    reason: str | None
    kind: str
    due_ms: int | None
    rejected_ms: int | None
    receives: int | None
    body: Body
    attributes: Mapping[str, Attribute]

    @classmethod
    def of(cls, rejection: Rejection) -> Self:
        """What is kept of a message that was received."""
        copy, original = rejection.copy, rejection.original
        body = Body.of(original.body)
        # As much of it as takes 64 KiB of memory, where Python takes up to 4 bytes a character.
        most = BODY_SHOWN if body.text.isascii() else BODY_SHOWN // 4
        reason = None if rejection.reason is None else text_of(rejection.reason[:TEXT_KEPT])
        return cls(
            key=copy.sqs_message_id,
            message_id=rejection.message_id[:TEXT_KEPT],
            reason=reason,
            kind=NO_REASON if reason is None else text_of(_VARIES.sub("…", reason)),
            due_ms=rejection.due if isinstance(rejection.due, int) else None,
            rejected_ms=copy.sent_ms,
            receives=copy.receive_count,
            body=body._replace(text=body.text[:most], cut=len(body.text) > most),
            attributes={name: _cut(value) for name, value in original.attributes.items()},
        )


def _cut(value: Attribute) -> Attribute:
    if "BinaryValue" in value:
        return {**value, "BinaryValue": value["BinaryValue"][:TEXT_KEPT]}
    text = value["StringValue"]
    return value if len(text) <= TEXT_KEPT else {**value, "StringValue": f"{text[:TEXT_KEPT]}…"}


def grouped(rejections: Collection[Failed]) -> list[tuple[str, list[Failed]]]:
    """Messages by reason, the largest group first."""
    groups = defaultdict[str, list[Failed]](list)
    for each in rejections:
        groups[each.kind].append(each)
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
