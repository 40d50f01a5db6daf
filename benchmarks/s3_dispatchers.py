"""Releasing from S3 beside DynamoDB, up to the send: messages a CPU second of the dispatcher, in one run.

Both stores are the local AWS's, on this machine; what the server uses is not counted. Exits with 1 if a
message is released twice or never, or if the ratio is below 5. How many are released in time is reckoned
in docs/capacity.md.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator

from benchmarks.s3_store import BODY
from sqsdelay.core.checked_message import new_message_id
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.stores.dynamodb import DynamoDbStore
from sqsdelay.stores.s3 import S3Store
from sqsdelay.testing import LocalAws, ManualClock

BATCH = 1000
AIM = 5


def messages(count: int, due_ms: int) -> Iterator[StoredMessage]:
    """All due in the same second."""
    for n in range(count):
        at_ms = due_ms + n % 1000
        yield StoredMessage(
            message_id=new_message_id(at_ms),
            destination="orders",
            due_ms=at_ms,
            body=BODY.encode(),
        )


def per_cpu_second(parker: DelayedMessageStore, store: DelayedMessageStore, count: int) -> float:
    """Park long ago what is due now, and release all of it, but for the send."""
    now_ms = time.time_ns() // 1_000_000
    given = list(messages(count, now_ms - 1000))
    parker.set_up()
    for start in range(0, count, 5000):
        assert all(parker.store(given[start : start + 5000]))
    arrived: Counter[str] = Counter()
    started = time.process_time()
    while len(arrived) < count:
        with store.claim(BATCH, due_by_ms=now_ms) as claim:
            names = [message.message_id for message in claim.messages]
            assert all(claim.remove(names))
        arrived.update(names)
    spent = time.process_time() - started
    assert set(arrived.values()) == {1}
    return count / spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    options = parser.parse_args()
    with LocalAws() as aws:
        s3, dynamodb = aws.client("s3"), aws.client("dynamodb")
        ago = ManualClock(time.time_ns() // 1_000_000 - 7_200_000)
        stores: dict[str, list[DelayedMessageStore]] = {
            "S3": [
                S3Store("parked", endpoint="orders", client=s3, clock=clock)
                for clock in (ago, None)
            ],
            "DynamoDB": [
                DynamoDbStore("parked", endpoint="orders", client=dynamodb, clock=clock)
                for clock in (ago, None)
            ],
        }
        rates: dict[str, float] = {}
        for name, (parker, store) in stores.items():
            rates[name] = per_cpu_second(parker, store, options.messages)
            parker.close()
            store.close()
            print(
                f"{name}: {rates[name]:,.0f} messages a CPU second of the dispatcher, up to the send"
            )
    ratio = rates["S3"] / rates["DynamoDB"]
    print(f"S3 / DynamoDB: {ratio:.1f}")
    return int(ratio < AIM)


if __name__ == "__main__":
    raise SystemExit(main())
