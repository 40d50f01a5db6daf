"""The S3 store on a real S3, as time passes: three levels of slots of seconds, two dispatchers."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from contextlib import closing
from dataclasses import dataclass

from botocore.config import Config

from sqsdelay.core.checked_message import new_message_id
from sqsdelay.core.clock import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.stores.s3 import S3Store
from sqsdelay.stores.s3.slots import parse
from sqsdelay.testing import InMemoryOutbox
from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS

MESSAGES = 3_000
CANCELLED = 10


def test_thousands_through_all_levels(local_aws: LocalAws) -> None:
    """Each arrives once, none early, none that was cancelled; coarse slots were split on the way, and
    nothing stays in the bucket but decisions."""
    played = play(local_aws, MESSAGES, first_seconds=10, spread_seconds=28)
    assert played.wrong() == []
    assert played.levels == {24, 6, 2}


@dataclass(frozen=True)
class Played:
    """What became of the messages of one run."""

    expected: set[str]
    arrived: Counter[str]
    early: list[str]
    levels: set[int]
    left: int
    latest_ms: int

    def wrong(self) -> list[str]:
        """Promises that were broken."""
        found = {
            "lost": len(self.expected - self.arrived.keys()),
            "arrived though cancelled": len(self.arrived.keys() - self.expected),
            "arrived more than once": sum(count > 1 for count in self.arrived.values()),
            "early": len(self.early),
            "left in the bucket": self.left,
        }
        return [f"{count} {what}" for what, count in found.items() if count]


def play(
    aws: LocalAws,
    messages: int,
    *,
    first_seconds: int,
    spread_seconds: int,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Played:
    """Store, cancel some, and release with two dispatchers as the time comes."""
    clock = SystemClock()
    bucket = f"wheel-{uuid.uuid4().hex[:8]}"
    client = aws.client("s3", config=Config(max_pool_connections=40))

    def opened() -> S3Store:
        return S3Store(
            bucket,
            endpoint="orders",
            prefix="delays",
            client=client,
            slots=(24, 6, 2),
            split_messages=50,
        )

    with closing(opened()) as store, closing(opened()) as other:
        store.set_up()
        start_ms = clock.now_ms() + first_seconds * 1000
        sent = [
            _message(start_ms + spread_seconds * 1000 * n // messages, n) for n in range(messages)
        ]
        for start in range(6):
            assert all(store.store(sent[start::6]))
        cancelled = [m.message_id for m in sent[-400 :: 400 // CANCELLED]]
        assert store.cancel(cancelled) == [True] * CANCELLED
        levels = _levels(client, bucket)
        outbox = InMemoryOutbox(clock)
        early: list[str] = []
        late_ms = [0]

        def note(message: StoredMessage) -> None:
            late_ms[0] = max(late_ms[0], clock.now_ms() - message.due_ms)
            if message.due_ms > clock.now_ms():
                early.append(message.message_id)

        outbox.fail = note
        stop = threading.Event()
        settings = DispatchSettings(release_ahead_seconds=0, batch_size=300, poll_seconds=0.2)
        threads = [
            threading.Thread(target=Dispatcher(each, outbox, settings=settings).run, args=(stop,))
            for each in (store, other)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + patience_seconds
        while len(outbox.sent) < messages - CANCELLED and time.monotonic() < deadline:
            time.sleep(0.2)
            levels |= _levels(client, bucket)
        stop.set()
        for thread in threads:
            thread.join()
        return Played(
            {m.message_id for m in sent} - set(cancelled),
            Counter(each.message_id for each in outbox.sent),
            early,
            levels,
            store.pending_count() + len(store.pending(10)),
            late_ms[0],
        )


def _message(due_ms: int, n: int) -> StoredMessage:
    return StoredMessage(
        message_id=new_message_id(due_ms), destination="orders", due_ms=due_ms, body=b"%d" % n
    )


def _levels(client: object, bucket: str) -> set[int]:
    """The lengths of slots that hold anything."""
    found: set[int] = set()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)  # type: ignore[attr-defined]
    for page in pages:
        for each in page.get("Contents", ()):
            named = parse(each["Key"].removeprefix("delays/orders/v1/"))
            if named is not None:
                found.add(named[0].slot.seconds)
    return found
