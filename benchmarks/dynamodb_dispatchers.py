"""One, two, four and eight dispatchers on one DynamoDB table: releases a second, and conditional writes
that failed, which are billed like others.

The table is dynalite's (npm), on this machine. A batch's sending is a pause, as it is on SQS, where
answers are waited for. Exits with 1 if a message was released twice or never, or if more than one
conditional write in a hundred messages failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from benchmarks.support.dynalite import OTHER_WRITES, TABLE, Meter, create_table, running_dynalite
from sqsdelay.core.message import new_message_id
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.stores import DynamoDbStore
from sqsdelay.testing import ManualClock

BATCH: Final = 250
MOST_FAILED: Final = 0.01
"""Conditional writes that fail, for each message released."""


@dataclass(frozen=True, kw_only=True)
class Released:
    """How a run went."""

    dispatchers: int
    seconds: float
    messages: Counter[str]
    each: list[int]
    failed_conditions: int
    lease_writes: float

    @property
    def failed_share(self) -> float:
        """Conditional writes that failed, for each message."""
        return self.failed_conditions / self.messages.total()


def released(url: str, dispatchers: int, messages: int, pause_seconds: float) -> Released:
    """Park them long ago, and have so many dispatchers release them."""
    counts: Counter[str] = Counter()
    meter = Meter(counts)
    now_ms = time.time_ns() // 1_000_000
    create_table(meter.client(url))
    parker = DynamoDbStore(
        TABLE, endpoint="orders", client=meter.client(url), clock=ManualClock(now_ms - 7_200_000)
    )
    parker.store(
        [
            StoredMessage(
                message_id=new_message_id(now_ms - n),
                destination="orders",
                due_ms=now_ms - n,
                body=b"x" * 200,
            )
            for n in range(messages)
        ]
    )
    parker.close()
    counts.clear()
    meter.conditions_failed = 0
    sent: list[Counter[str]] = [Counter() for _ in range(dispatchers)]

    def dispatch(number: int) -> None:
        store = DynamoDbStore(TABLE, endpoint="orders", client=meter.client(url))
        while sum(map(len, sent)) < messages:
            with store.claim(BATCH, due_by_ms=now_ms) as claim:
                names = [m.message_id for m in claim.messages]
                if names:
                    time.sleep(pause_seconds)
                sent[number].update(names)
                claim.remove(names)
            if not names:
                time.sleep(pause_seconds / 4)
        store.close()

    started = time.perf_counter()
    with ThreadPoolExecutor(dispatchers) as pool:
        list(pool.map(dispatch, range(dispatchers)))
    return Released(
        dispatchers=dispatchers,
        seconds=time.perf_counter() - started,
        messages=sum(sent, Counter()),
        each=[len(one) for one in sent],
        failed_conditions=meter.conditions_failed,
        lease_writes=counts[OTHER_WRITES],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=12_000)
    parser.add_argument("--pause-ms", type=float, default=500, help="what sending a batch takes")
    given = parser.parse_args()
    problems, alone = 0, 0.0
    with running_dynalite() as url:
        for dispatchers in (1, 2, 4, 8):
            run = released(url, dispatchers, given.messages, given.pause_ms / 1000)
            total, rate = run.messages.total(), given.messages / run.seconds
            alone = alone or rate
            print(
                f"{dispatchers} dispatchers: {rate:8,.0f} a second, {rate / alone:.1f} x one, "
                f"{run.failed_share:.4f} failed conditions and "
                f"{run.lease_writes / total:.3f} lease writes a message, shares {run.each}"
            )
            problems += len(run.messages) != given.messages or total != given.messages
            problems += run.failed_share > MOST_FAILED
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
