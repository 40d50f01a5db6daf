"""What delays cost in requests really made: counted where botocore sends them, under virtual time.

Sender, delay consumer, store and dispatcher are the ones that run in production. SQS is moto in this
process; DynamoDB is dynalite (npm), which says what each call consumes as AWS does. Prices are
sqsdelay's own file. Exits with 1 if the counts are not what `sqsdelay cost` reckons with.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from fractions import Fraction

from benchmarks import s3_store
from benchmarks.support.body import BODY
from benchmarks.support.counting import (
    DAY,
    STORED,
    Counted,
    extrapolated,
    idle,
    parked,
    relayed,
    stored,
)
from benchmarks.support.dynalite import (
    AMENDMENTS,
    MESSAGE_WRITES,
    OTHER_WRITES,
    READS,
    STORED_BYTES,
    running_dynalite,
)
from sqsdelay.core.message import size_of
from sqsdelay.cost import Bill, Prices, Workload, bill, bills, shipped_prices
from sqsdelay.cost.places import IDLE_READ_UNITS, STORAGE_OVERHEAD_BYTES, item_bytes

HOUR = 3600
DELAYS = {"1 hour": HOUR, "1 day": DAY, "30 days": 30 * DAY, "1 year": 365 * DAY}

AIMS_USD = {
    "parked": "2.30",
    "stored by the sender": "1.80",
    "parked, Standard-IA": "1.60",
    "stored, Standard-IA": "1.60",
    "parked in S3": "0.40",
    "stored in S3": "0.30",
}
"""A year of a million messages of this size."""


MILLION = 10**6


@dataclass(frozen=True)
class Measured:
    """A way of delaying: what was counted, and the load whose bill it is held against."""

    way: str
    strategy: str
    counted: Counted
    work: Workload
    remark: str = ""

    def bill(self, prices: Prices) -> Bill:
        return bill(self.strategy, self.work, prices)


def agrees(counted: Counted, bill: Bill) -> bool:
    """Whether the bill's quantities are what was counted, for as many messages."""
    labels = {
        "sqs fifo": "SQS FIFO",
        "sqs standard": "SQS standard",
        MESSAGE_WRITES: "write units",
        AMENDMENTS: "cancelled or moved",
    }
    return all(
        counted.counts[name]
        == sum(line.quantity for line in bill.lines if what in line.what and not line.fixed)
        for name, what in labels.items()
    )


def priced(counted: Counted, bill: Bill, prices: Prices, work: Workload) -> Fraction:
    """Dollars a million messages: what was counted and stored, and the bill's functions."""
    rare = work.infrequent_access
    write = prices.dynamodb_ia_write_unit if rare else prices.dynamodb_write_unit
    read = prices.dynamodb_ia_read_unit if rare else prices.dynamodb_read_unit
    requests = (
        counted.per_message("sqs fifo") * prices.sqs_fifo_request
        + counted.per_message("sqs standard") * prices.sqs_standard_request
        + (counted.per_message(MESSAGE_WRITES) + counted.per_message(OTHER_WRITES)) * write
        + (counted.per_message(READS) + counted.per_message(AMENDMENTS)) * read
    )
    others = sum(
        (line.amount for line in bill.lines if not line.fixed and "Lambda" in line.what),
        Fraction(0),
    )
    # As many bytes as were stored, of the bill's.
    stored_bytes = counted.per_message(STORED_BYTES) + STORAGE_OVERHEAD_BYTES
    told_bytes = item_bytes(work) + STORAGE_OVERHEAD_BYTES
    storage = sum(line.amount for line in bill.lines if "storage" in line.what)
    others += storage * stored_bytes / told_bytes
    return (requests + others / counted.messages) * MILLION


def measure(url: str, delay_seconds: int, count_seconds: int) -> list[Measured]:
    """Each way's counts."""
    remark = "hops extrapolated" if delay_seconds > count_seconds else ""
    found = []
    for way, messages in (("relay, one at a time", 1), ("relay, batches of 10", 10)):
        counted = relayed(min(delay_seconds, count_seconds), messages)
        if remark:
            counted = extrapolated(counted, delay_seconds)
        found.append(
            Measured(way, "relay", counted, load(delay_seconds, messages, messages), remark)
        )
    work = load(delay_seconds, STORED, 10)
    rare = replace(work, infrequent_access=True)
    for way, strategy, count in (
        ("stored by the sender", "stored", stored),
        ("parked", "parked", parked),
    ):
        # The same calls whatever the delay: counted over the longest.
        counted = count(url, max(DELAYS.values()), STORED)
        found.append(Measured(way, strategy, counted, work))
        found.append(Measured(f"{strategy}, Standard-IA", strategy, counted, rare))
    return found


def in_s3(kept: s3_store.Released, delay_seconds: int, prices: Prices) -> dict[str, Fraction]:
    """Both ways into the S3 store: the same requests whatever the delay, and storage by it."""
    paid = s3_store.parts(kept, prices, delay_seconds=delay_seconds)
    through_the_queue = sum(paid.values(), Fraction())
    queue = paid["delay queue: send, receive, delete"]
    return {"parked in S3": through_the_queue, "stored in S3": through_the_queue - queue}


def load(delay_seconds: int, messages: int, batch: int) -> Workload:
    return Workload(
        delay_seconds=delay_seconds,
        messages=messages,
        batch=batch,
        message_bytes=size_of(BODY, {}),
        park_after_seconds=0,  # what is counted is parked, whatever its delay
    )


def main() -> int:
    arguments = parsed()
    prices = shipped_prices()
    print(
        f"messages of {size_of(BODY, {})} bytes; hops counted up to {arguments.count_days} days; "
        f"{prices.region}, prices read on {prices.read_on}\n"
    )
    print(f"{'':24}{'a message':^48}{'USD a':>12}")
    print(
        f"{'way':24}{'FIFO':>12}{'standard':>12}{'write units':>12}{'read units':>12}{'million':>12}"
    )
    kept = s3_store.year(arguments.s3_messages)
    problems = s3_store.dearer_than_told(kept, arguments.s3_messages * DAY // 100_000)
    with running_dynalite() as url:
        for name, delay_seconds in DELAYS.items():
            print(f"-- {name}")
            dollars = {}
            for measured in measure(url, delay_seconds, arguments.count_days * DAY):
                bill = measured.bill(prices)
                dollars[measured.way] = priced(measured.counted, bill, prices, measured.work)
                show(measured, dollars[measured.way])
                if not agrees(measured.counted, bill):
                    counts = dict(measured.counted.counts)
                    problems.append(f"{name}, {measured.way}: {counts} is not what the bill says")
            for way, amount in in_s3(kept, delay_seconds, prices).items():
                dollars[way] = amount
                print(f"{way:24}{'':48}{float(amount):>12,.2f}  requests of benchmarks.s3_store")
            for other in bills(load(delay_seconds, MILLION, 10), prices)[-2:]:
                cost = "impossible" if other.impossible else f"{float(other.for_messages):,.2f}"
                print(f"{other.strategy:24}{'':48}{cost:>12}  list price, not measured")
        reads = idle(url, "parked", 1)["dynamodb reads"] / 60
    print(f"\nan idle run of the dispatcher function reads {reads:g} units")
    if reads > IDLE_READ_UNITS:
        problems.append(f"sqsdelay cost reckons with {IDLE_READ_UNITS} units for an idle run")
    show_aims(dollars)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def show_aims(dollars: dict[str, Fraction]) -> None:
    """A year of each way, and its aim."""
    for way, aim in AIMS_USD.items():
        told = "met" if dollars[way] < Fraction(aim) else "missed"
        print(f"a year {way}: ${float(dollars[way]):.3f} a million, aim ${aim}: {told}")


def show(measured: Measured, dollars: Fraction) -> None:
    columns = "".join(
        f"{float(measured.counted.per_message(what)):>12,.1f}"
        for what in ("sqs fifo", "sqs standard")
    )
    writes = measured.counted.per_message(MESSAGE_WRITES) + measured.counted.per_message(
        OTHER_WRITES
    )
    reads = measured.counted.per_message(READS) + measured.counted.per_message(AMENDMENTS)
    columns += f"{float(writes):>12,.2f}{float(reads):>12,.2f}"
    print(f"{measured.way:24}{columns}{float(dollars):>12,.2f}  {measured.remark}".rstrip())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--count-days",
        type=int,
        default=1,
        help="delays up to so many days are counted hop by hop; longer ones are extrapolated",
    )
    parser.add_argument(
        "--s3-messages", type=int, default=10_000, help="messages counted in the S3 store"
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.count_days <= 365:
        parser.error("--count-days: 1 to 365")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
