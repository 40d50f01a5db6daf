"""docs/senders-contract.md's code, run by programs of other languages, and the endpoint it sends to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from sqsdelay import DelayConsumer
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import MESSAGE_ID, WAS_DUE_AT
from sqsdelay.sqs import create_endpoint
from sqsdelay.sqs.receivers import in_thread
from sqsdelay.testing import LocalAws
from tests.guides.page import Block, blocks
from tests.patience import PATIENCE_SECONDS, ended
from tests.services.endpoints import in_queue
from tests.services.processes import environment

PAGE: Final = "docs/senders-contract.md"
HOP: Final = 1


def block(language: str, part: str = "") -> Block:
    """The page's one block in a language that has this in it."""
    (found,) = (b for b in blocks(PAGE) if b.language == language and part in b.text)
    return found


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a program to its end; returns what it printed."""
    done = ended(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(env or {}) | {"NODE_OPTIONS": "--disable-warning=Warning"},
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    return done.stdout


def attribute(message: dict[str, Any], name: str) -> str:
    return str(message["MessageAttributes"][name]["StringValue"])


class Site:
    """An endpoint; its hop is short, so that what waits can be looked at. Gone after a ``with``."""

    def __init__(self, local_aws: LocalAws, name: str, hop_seconds: int = HOP) -> None:
        self.aws, self.name = local_aws, name
        self.sqs = local_aws.client("sqs")
        self._made = create_endpoint(self.sqs, Endpoint.parse(name), hop_seconds=hop_seconds)
        # A queue that another test left behind keeps that test's hop.
        assert len(self._made) == 3, f"{name} was there before: only {self._made} was made"
        self.url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            self.sqs.delete_queue(QueueUrl=self.sqs.get_queue_url(QueueName=name)["QueueUrl"])

    @contextmanager
    def relayed(self) -> Iterator[None]:
        """Meanwhile a delay consumer serves it."""
        stop = threading.Event()
        consumer = DelayConsumer(self.name, self.sqs, hop_seconds=HOP, wait_seconds=1)
        self._relaying = in_thread(consumer.run, stop)
        try:
            yield
        finally:
            stop.set()
            self._relaying.result(PATIENCE_SECONDS)

    def arrived(self, count: int) -> dict[str, dict[str, Any]]:
        """What arrives, by its body, each with the time it came."""
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, found
            assert not self._relaying.done(), self._relaying.exception()
            for message in in_queue(self.sqs, self.url, wait=5):
                self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
                assert message["Body"] not in found
                found[message["Body"]] = message | {"at": datetime.now(UTC)}
        return found


def with_short_hops(code: str) -> str:
    """A page's code for an endpoint whose hop takes `HOP`, as the page says to change it."""
    assert str(MAX_MESSAGE_TIMER_SECONDS) in code
    return code.replace(str(MAX_MESSAGE_TIMER_SECONDS), str(HOP))


def was_relayed(message: dict[str, Any], *, message_id: str) -> None:
    """The message came through the delay queue, under the id that its sender gave it."""
    assert attribute(message, MESSAGE_ID) == message_id
    assert message["at"].timestamp() * 1000 >= int(attribute(message, WAS_DUE_AT))
