"""A boto3 client that notes what it sends and what SQS answers, for whoever must say so in full."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Seen:
    """The sends of one call.

    ``entries`` has, for SQS's message id, what was sent and what was answered; ``metadata`` is the
    last answer's ``ResponseMetadata``.
    """

    entries: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None


class Witness:
    """What is put before a client's own class."""

    _seen: threading.local

    @contextmanager
    def watching(self) -> Iterator[Seen]:
        """What this thread sends within the block."""
        seen = self._seen.now = Seen()
        try:
            yield seen
        finally:
            del self._seen.now

    def send_message(self, **kwargs: Any) -> Any:
        plain: Any = super()
        answer = plain.send_message(**kwargs)
        self._note(answer, [(kwargs, answer)])
        return answer

    def send_message_batch(self, **kwargs: Any) -> Any:
        plain: Any = super()
        answer = plain.send_message_batch(**kwargs)
        sent = {entry["Id"]: entry for entry in kwargs["Entries"]}
        self._note(answer, [(sent[done["Id"]], done) for done in answer.get("Successful", ())])
        return answer

    def _note(self, answer: Mapping[str, Any], pairs: list[tuple[Any, Any]]) -> None:
        seen: Seen = self._seen.now
        seen.metadata = answer.get("ResponseMetadata")
        for sent, answered in pairs:
            if "MessageId" in answered:
                seen.entries[answered["MessageId"]] = (sent, answered)
