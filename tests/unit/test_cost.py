"""What delays cost: the documented formula, and what really happens, to the last digit."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import date
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ledger
from sqsdelay.core.message import new_message_id
from sqsdelay.cost import (
    Bill,
    Workload,
    bill,
    parse_prices,
    recommend,
    shipped_prices,
    shipped_text,
)
from sqsdelay.cost.places import GROUP, ITEM_BYTES, LOOK_SECONDS, RELEASED_SECONDS, SLOTS
from sqsdelay.cost.strategies import RECEIVERS, due_queue, rate, ways
from sqsdelay.cost.workload import BANDS, DISPATCH_MS, LAMBDA_POLLERS, band_of, invocation_cost
from sqsdelay.errors import ConfigurationError
from sqsdelay.sqs.receivers import LEAST_RECEIVERS
from sqsdelay.stores.dynamodb.layout import Entry, Lane, Layout, Place
from sqsdelay.stores.dynamodb.layout import item_bytes as item_size
from sqsdelay.stores.s3.layout import DEFAULT_SLOTS, MAX_OBJECT_MESSAGES
from sqsdelay.stores.s3.s3_store import GATHER_MS, TURN_SECONDS, S3Store
from tests.messages import a_message

DAY = 24 * 3600
YEAR = 365 * DAY
MILLION = 10**6
PRICES = shipped_prices()
DYNAMODB = "-c store=dynamodb DynamoDB, parked by the delay consumer"
DYNAMODB_BY_SENDER = "-c store=dynamodb DynamoDB, parked by the sender"
S3 = "-c store=s3 S3, parked by functions"
S3_BY_SENDER = "-c store=s3 S3, parked by the sender"
ALL_TOGETHER = {"delay_seconds": 30 * DAY, "messages": 10**8, "due_together": 10**8}
SCHEDULER = "-c store=scheduler EventBridge Scheduler, parked by the delay consumer"


def bill_of(strategy: str, delay_seconds: int = YEAR, **load: Any) -> Bill:
    return bill(strategy, Workload(delay_seconds=delay_seconds, **load), PRICES)


def quantities(bill: Bill, word: str, *, fixed: bool = False) -> list[Fraction]:
    return [Fraction(e.quantity) for e in bill.lines if word in e.what and e.fixed == fixed]


@pytest.mark.parametrize(
    ("seconds", "cycles", "hops"),
    [(0, 0, 0), (845, 0, 0), (900, 0, 0), (901, 1, 1), (1800, 2, 1), (1801, 2, 2), (YEAR, 35_040, 35_039)],
)  # fmt: skip
def test_cycles_and_hops(seconds: int, cycles: int, hops: int) -> None:
    """The documented formula counts whole cycles, and none up to 900 s; the last message timer is no hop."""
    assert bill_of("formula", seconds).lines[0].quantity == 2 * cycles
    assert Workload(delay_seconds=seconds).hops == hops


def test_a_relayed_year_is_three_requests_a_hop() -> None:
    """Send, receive and delete of 35,039 hops, and the last send to the destination; in tens, a tenth, the
    last batch included."""
    bill = bill_of("relay")
    assert quantities(bill, "SQS FIFO") == [105_117]
    assert quantities(bill, "SQS standard") == [1]
    assert quantities(bill, "Lambda requests") == [35_039]
    sqs = [line.amount for line in bill.lines if "SQS" in line.what and not line.fixed]
    assert sum(sqs) == Fraction("0.0525589")
    in_tens = bill_of("relay", 1800, messages=1_000_001, batch=10)
    assert quantities(in_tens, "SQS") == [3 * 100_001, 100_001]


def test_up_to_900_seconds_every_way_of_ours_is_one_send() -> None:
    """A message timer holds it: no hop, no store, no function."""
    for strategy in ("relay", "parked", "stored", "parked-in-s3"):
        assert bill_of(strategy, 900).total == Fraction("0.0000004")


@pytest.mark.parametrize(
    ("message_bytes", "batch", "sent", "received"),
    [(65_455, 1, 1, 1), (65_456, 1, 2, 2), (6_472, 10, 1, 1), (6_473, 10, 2, 2),
     # Ten of 300 KiB take four sends, of three at most.
     (1_000_000, 1, 16, 16), (300 * 1024, 10, 3 * 15 + 5, 47)],
)  # fmt: skip
def test_64_kib_begun_is_a_request(
    message_bytes: int, batch: int, sent: int, received: int
) -> None:
    """The payload counts with the 81 bytes that the delay adds, over the whole batch."""
    bill = bill_of("relay", 1800, messages=batch, batch=batch, message_bytes=message_bytes)
    assert quantities(bill, "SQS standard") == [sent]
    assert quantities(bill, "SQS FIFO") == [sent + received + 1]


def test_a_parked_message_is_written_once() -> None:
    """964 bytes and sqsdelay's 60 are one write unit; 1,988 are two. Nothing is claimed, no index is
    written, time to live deletes for nothing."""
    small = bill_of("parked", message_bytes=964)
    for message_bytes, units in ((964, 1), (965, 2), (1988, 2), (1989, 3)):
        assert quantities(bill_of("parked", message_bytes=message_bytes), "write units") == [units]
    assert quantities(small, "lease writes") == [2]
    together = bill_of("parked", messages=1000, batch=10)
    assert quantities(together, "lease writes") == [32]
    own = bill_of("parked", messages=1000, own_ids=True)
    assert quantities(own, "ids of your own") == [1000]
    assert quantities(small, "SQS FIFO") == [3]
    assert quantities(small, "cancelled or moved") == [2]
    assert quantities(bill_of("stored"), "SQS FIFO") == []


def test_a_last_release_with_room_is_billed_for_what_it_holds() -> None:
    """One message more than a thousand takes a request of each kind, not another hundred."""
    full, more = (bill_of("scheduled", messages=n, batch=10) for n in (1_000, 1_001))
    told = [float(sum(quantities(each, "SQS standard"))) for each in (full, more)]
    assert told == pytest.approx([1_300, 1_304], rel=0.001)


def test_storage_is_billed_for_the_whole_delay_and_until_it_expires() -> None:
    """A million items of 724 + 60 + 100 bytes for twelve months and two weeks."""
    bill = bill_of("stored", messages=MILLION, message_bytes=724)
    months = 12 + Fraction(14 * 12, 365)
    assert quantities(bill, "storage") == [Fraction(MILLION * 884, 2**30) * months]


def test_standard_ia_stores_for_less_and_writes_for_more() -> None:
    """A year is cheaper on it, an hour dearer."""
    for seconds, cheaper in ((YEAR, True), (3600, False)):
        shape = Workload(delay_seconds=seconds, messages=1000, message_bytes=204, batch=10)
        rare = bill("stored", Workload(**asdict(shape) | {"infrequent_access": True}), PRICES)
        assert (rare.for_messages < bill("stored", shape, PRICES).for_messages) is cheaper


def test_the_sizes_counted_are_those_of_the_stores_items() -> None:
    """An item, measured as DynamoDB does, fits what the sum says."""
    due_ms = 1_800_000_000_000
    message_id = new_message_id(due_ms)
    message = a_message(message_id, due_ms)
    place = Place(due_ms, message_id, Lane.FAR, 7)
    item = Layout("orders").item(Entry(place, message, False))
    assert item_size(item) - len(message.body) == ITEM_BYTES


def test_aws_own_ways_are_an_invocation_or_two_transitions_and_a_send() -> None:
    """A million schedules: $1.00, and $0.40 for the sends. An execution is shorter than a year."""
    assert bill_of("eventbridge-scheduler", messages=MILLION, batch=10).total == Fraction("1.40")
    assert bill_of("step-functions", YEAR - 1).total == Fraction("0.0000504")


@pytest.mark.parametrize(
    ("strategy", "load", "why"),
    [
        ("step-functions", {}, "one year"),
        ("step-functions", {"delay_seconds": DAY, "message_bytes": 300_000}, "execution holds"),
        ("parked", {"message_bytes": 409_541}, "holds 409600 bytes, this one has 409601"),
        ("scheduled", {"message_bytes": 300_000}, "a schedule holds 262144 bytes"),
        ("scheduled-by-sender", {"message_bytes": 300_000}, "a schedule holds 262144 bytes"),
        ("eventbridge-scheduler", {"message_bytes": 300_000}, "a schedule holds 262144 bytes"),
        # What waits for a hop longer than SQS keeps it: at 1,222 a second, or until it is parked, at 720.
        ("relay", {"messages": 1_477_300_001}, "lost: copies wait up to 14.0 days in the delay"),
        ("relay", {"messages": 10**8, "message_bytes": 300_000}, "up to 44.2 days in the delay"),
        ("parked", {"messages": 10**9, "due_together": 10**9}, "up to 16.1 days in the delay"),
        # What a schedule sends is retried for a day; DynamoDB keeps for 14 days what is due.
        ("scheduled", ALL_TOGETHER, "27.5 h late, and after 24 h this place gives them up"),
        ("stored", {"messages": 10**10, "due_together": 10**10}, "581.1 h late, and after 336 h this"),
        # Those sent evenly: most are so late that they are not parked any more.
        ("parked-in-s3-by-functions", {"messages": 16 * 10**8, "delay_seconds": DAY}, "up to 14.5 days"),
        ("parked", {"messages": 28 * 10**8, "delay_seconds": 30 * DAY}, "up to 15.0 days in the"),
    ],
)  # fmt: skip
def test_what_cannot_be_has_no_price_but_a_reason(
    strategy: str, load: dict[str, Any], why: str
) -> None:
    """A service's limit, or messages that would be lost; a little less is possible, and by the sender."""
    found = bill_of(strategy, **{"batch": 10, **load})
    assert why in (found.impossible or "")
    assert not found.lines
    if "messages" in load:
        fewer = load | {"messages": int(load["messages"] * (0.8 if strategy != "relay" else 0.3))}
        if "due_together" in load:
            fewer["due_together"] = fewer["messages"] // 2
        assert bill_of(strategy, **{"batch": 10, **load, **fewer, "message_bytes": 200}).lines
        assert strategy == "relay" or bill_of("stored-in-s3", **{"batch": 10, **load}).lines


@pytest.mark.parametrize(
    ("field", "value"),
    [("delay_seconds", -1), ("delay_seconds", 8_100 * YEAR), ("messages", 0), ("batch", 11),
     ("message_bytes", 1_048_576), ("batch", True), ("hop_seconds", 901)],
)  # fmt: skip
def test_a_workload_out_of_range_is_refused(field: str, value: int) -> None:
    """Value, limits, and which field."""
    with pytest.raises(ConfigurationError, match=f"{field}={value}; use a whole number"):
        bill_of("relay", **{field: value})


def test_the_shipped_prices_say_where_and_when() -> None:
    """Prices change: the file is dated, and every price is a decimal."""
    assert date(2026, 1, 1) < PRICES.read_on
    assert PRICES.region == "us-east-1"
    assert PRICES.sqs_fifo_request == Fraction("0.0000005")
    assert PRICES.lambda_arm64_gb_second == Fraction("0.0000133334")


def changed(**changes: Any) -> str:
    data = json.loads(shipped_text())
    prices = data["prices"] | changes.pop("prices", {})
    return json.dumps(data | changes | {"prices": prices})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", 'no object "prices"'),
        (changed(prices={"sqs": "1"}), "names 'sqs'; known are sqs_standard_million_requests"),
        (changed(prices={"dynamodb_gb_month": None}), "has no 'dynamodb_gb_month'"),
        (changed(read_on="yesterday"), "write the day"),
        (changed(region=None), "region is None"),
    ]
    + [
        (changed(prices={"dynamodb_gb_month": wrong}), "write a decimal in quotes")
        for wrong in (0.25, "-1", "NaN", "cheap")
    ],
)
def test_a_bad_price_file_is_refused_with_its_name(text: str, told: str) -> None:
    """Which file, which entry, what to write."""
    with pytest.raises(ConfigurationError, match=r"price file mine\.json") as raised:
        parse_prices(text, "mine.json")
    assert told in str(raised.value)


def test_what_is_due_too_soon_for_a_schedule_hops() -> None:
    """Within half an hour, at the consumer after a hop; the sum says what it does."""
    for strategy, least in (("scheduled-by-sender", 1_800), ("scheduled", 2_700)):
        for delay_seconds, hops in ((least - 1, True), (least, False)):
            both = (strategy, "relay")
            ours, relayed = (bill_of(e, delay_seconds, park_after_seconds=0) for e in both)
            assert (ours.for_messages == relayed.for_messages) is hops
            assert any("too short" in each for each in ours.warnings) is hops


@pytest.mark.parametrize(
    ("millions", "days", "dollars_each"), [(1, 365, 1.60), (1, 30, 1.56), (100, 365, 1.55)]
)
def test_sent_singly_and_due_apart_a_million_schedules_cost_little_more_than_amazons(
    millions: int, days: int, dollars_each: float
) -> None:
    """$1.40 alone, and a minute off. What is due in the same five minutes shares its requests."""
    load = {"messages": millions * MILLION, "message_bytes": 200}
    bill = bill_of("scheduled-by-sender", days * DAY, **load)
    assert float(bill.for_messages) / millions <= dollars_each


@pytest.mark.parametrize(
    ("load", "best"),
    [
        ({"delay_seconds": 600}, "no store hops"),
        ({"delay_seconds": 3_600}, "no store hops"),
        ({}, SCHEDULER),
        ({"messages": 30 * MILLION}, S3),
        # Found by their own ids, for $9 more.
        ({"messages": 30 * MILLION, "own_ids": True}, SCHEDULER),
        ({"messages": 1, "own_ids": True}, SCHEDULER),
        ({"messages": 1, "own_ids": True, "message_bytes": 500_000}, S3_BY_SENDER),
        # 300,000 bytes do not fit a schedule: such messages would hop, at 10,000 times the price.
        ({"message_bytes": 300_000}, S3),
        # More than S3, or the delay queue, brings on time.
        ({"delay_seconds": 3 * DAY, "due_together": MILLION}, S3),
        ({"delay_seconds": DAY, "messages": 2 * MILLION, "due_together": 2 * MILLION}, DYNAMODB),
        # All late: by 13.6 h for $21, or by 5.6 h for $186.
        (ALL_TOGETHER, S3_BY_SENDER),
        (ALL_TOGETHER | {"own_ids": True}, DYNAMODB_BY_SENDER),
        # On time by the sender alone: the delay consumer would lose them.
        ({"delay_seconds": 30 * DAY, "messages": 10**8, "message_bytes": 300_000}, S3_BY_SENDER),
    ],
)  # fmt: skip
def test_the_best_is_recommended(load: dict[str, Any], best: str) -> None:
    """Hops while they are few; nothing that runs where few messages wait for long; S3 for many."""
    shape = Workload(**{"delay_seconds": YEAR, "messages": MILLION, "batch": 10, **load})
    advice = recommend(shape, PRICES)
    deploy, bill = advice[0]
    assert f"{deploy} {bill.name}" == best
    assert all(each.impossible is None for _, each in advice)
    # A line a store; none that would be hops at a higher price.
    assert len({told for told, _ in advice}) == len(advice)
    assert shape.delay_seconds > 8_100 or len(advice) == 1
    others = [each.total for _, each in advice[1:]]
    assert shape.own_ids or others == sorted(others)


@pytest.mark.parametrize(
    ("strategy", "load", "late"),
    [
        ("parked-in-s3-by-functions", ALL_TOGETHER, "13.6 h"),
        ("parked", ALL_TOGETHER, "5.6 h"),
        ("eventbridge-scheduler", ALL_TOGETHER, "27.8 h"),
        ("parked-in-s3-by-functions", {}, None),
        ("relay", {}, "22.5 h"),
        ("relay", {"messages": 1_100_000}, None),
        ("relay", {"messages": 74_000, "delay_seconds": 901, "due_together": 74_000}, None),
        ("relay", {"messages": 110_000, "delay_seconds": 901, "due_together": 110_000}, "29 s"),
        ("relay", {"delay_seconds": 900}, None),
        # What is too near to be parked hops.
        ("parked-in-s3-by-functions", {"delay_seconds": 7_200}, "22.5 h"),
        # Parked at 720 a second, while more than 2.25 h are left; the others hop.
        ("parked", {"messages": 10**7, "delay_seconds": 3 * 3600, "due_together": 10**7}, "1.7 h"),
        ("stored", {"messages": 10**7, "delay_seconds": 3 * 3600, "due_together": 10**6}, None),
        # Sent evenly in a day, the last is parked before the day is over by half.
        ("parked", {"delay_seconds": DAY}, None),
        ("parked", {"delay_seconds": DAY, "messages": 10**9}, "213.5 h"),
        # A body of 1 MiB is 16 requests: ten of them take as long as 160 in tens.
        ("parked-in-s3", {"messages": 11_250, "message_bytes": MILLION, "due_together": 11_250}, None),
        ("parked-in-s3", {"messages": 20_000, "message_bytes": MILLION, "due_together": 20_000}, "700 s"),
    ],
)  # fmt: skip
def test_what_cannot_be_released_in_time_says_how_late_it_is(
    strategy: str, load: dict[str, Any], late: str | None
) -> None:
    """By rates of the capacity page, as deployed; what is not told to be due together comes evenly."""
    found = bill_of(strategy, **{"delay_seconds": 30 * DAY, "messages": 10**8, "batch": 10, **load})
    told = [each for each in found.warnings if each.startswith("the last message arrives")]
    assert told == ([f"the last message arrives {late} late"] if late else [])
    assert (found.late_seconds > 0) == (late is not None)


def test_a_quota_that_has_to_be_raised_is_told() -> None:
    """Ten million schedules; and that the service alone is not to the second."""
    asked = ("ask AWS for a higher quota of schedules than 10,000,000",)
    late = ("each up to a minute late",)
    for strategy, usual in (("scheduled", ()), ("eventbridge-scheduler", late)):
        many, few = (bill_of(strategy, messages=n).warnings for n in (10**7 + 1, 10**7))
        assert (few, many) == (usual, usual + asked)


def test_logs_are_in_the_bill_and_a_fifo_queue_beside_it() -> None:
    """A line of metrics for each run, by `benchmarks.ledger`; a due queue's requests, runs and polls."""
    (line,) = [e for e in bill_of("relay", 901).lines if "Logs" in e.what]
    told = re.search(r"1 copies a run: (\d+) bytes", ledger.metrics())
    assert told is not None
    assert abs(float(line.quantity * 2**30) - int(told[1])) < 10
    polls = 5 * DAY // 20
    assert quantities(bill_of("relay", DAY), "long polling", fixed=True) == [polls]
    requests = (20 + polls) * PRICES.sqs_standard_request + 10 * PRICES.sqs_fifo_request
    logs = 10 * line.quantity * PRICES.cloudwatch_logs_gb
    paid = due_queue(Workload(delay_seconds=DAY, messages=10), PRICES)
    assert paid == requests + 10 * invocation_cost(PRICES) + logs


def test_what_cloudwatch_takes_is_in_the_bill() -> None:
    """Eight metrics, five alarms and a dashboard a month of an endpoint without a store."""
    paid = {"relay": "5.90", "parked": "7.40", "eventbridge-scheduler": "0"}
    for strategy, month in paid.items():
        assert bill_of(strategy, YEAR // 12).part("CloudWatch") == Fraction(month)


@pytest.mark.parametrize(
    ("strategy", "longest_that_hops"),
    [("stored", 8100), ("stored-in-s3", 8100), ("scheduled-by-sender", 8100)]
    + [(name, 9000) for name in ("parked", "parked-in-s3", "scheduled")],
)
def test_what_is_due_soon_hops_as_it_is_deployed(strategy: str, longest_that_hops: int) -> None:
    """A sender parks what has more than 2.25 h, the delay consumer what has after its first hop."""
    for delay_seconds, hops in ((longest_that_hops, True), (longest_that_hops + 1, False)):
        of_hops = quantities(bill_of("relay", delay_seconds), "SQS FIFO")
        assert (quantities(bill_of(strategy, delay_seconds), "a hop") == of_hops) == hops


def test_the_dispatcher_is_priced_as_it_is_deployed() -> None:
    """1,769 MB: its time for the messages, and a run a minute whether or not any are due."""
    for strategy in ("stored", "stored-in-s3"):
        bill = bill_of(strategy, 3600, messages=MILLION, batch=10, park_after_seconds=0)
        a_second = Fraction(1769, 1024)
        spent = MILLION * a_second / 1000 * DISPATCH_MS
        assert quantities(bill, "GB-seconds (dispatcher,") == [spent]
        assert quantities(bill, "requests (dispatcher's schedule)", fixed=True) == [60]
        assert quantities(bill, "seconds (dispatcher's schedule,", fixed=True) == [6 * a_second]


def test_s3_is_priced_as_it_is_deployed() -> None:
    """Ten copies in a message of the parking queue, ten of which are received and deleted at a time; a
    dispatcher that runs each minute, and one more that parks. Large copies are parked without it."""

    def of(message_bytes: int) -> Bill:
        load = {"messages": MILLION, "message_bytes": message_bytes, "batch": 10}
        return bill_of("parked-in-s3-by-functions", **load)

    # A receive of a hundred copies is above 64 KiB.
    assert quantities(of(204), "parking queue: send") == [100_000 + 20_000 + 10_000]
    assert quantities(of(204), "requests (parking queue's schedule)", fixed=True) == [YEAR // 300]
    assert quantities(of(204), "requests (dispatcher's schedule)", fixed=True) == [YEAR // 60]
    assert quantities(of(64 * 1024), "parking queue: send") == []
    # The copies of a run, by the consumer; 6 MB of them at most.
    assert quantities(of(64 * 1024), "(objects)") == [100_000]
    assert quantities(of(700_000), "(objects)") == [200_000]


def test_the_s3_stores_figures_are_its_own() -> None:
    """How a worker gathers and polls, and how often a dispatcher looks."""
    assert SLOTS == DEFAULT_SLOTS
    assert GROUP == MAX_OBJECT_MESSAGES <= S3Store.stored_at_once
    assert LOOK_SECONDS == TURN_SECONDS == S3Store.poll_seconds
    assert RELEASED_SECONDS * 1000 == GATHER_MS
    assert RECEIVERS == LEAST_RECEIVERS < LAMBDA_POLLERS


MANY = 63_000
"""Fills batches of any size, and releases."""


@given(
    delay_seconds=st.integers(0, 3 * YEAR),
    message_bytes=st.integers(1, 1_000_000),
    batch=st.sampled_from([1, 10]),
    strategy=st.sampled_from(["relay", "parked", "eventbridge-scheduler"]),
)
def test_a_rate_is_the_bill_divided(
    delay_seconds: int, message_bytes: int, batch: int, strategy: str
) -> None:
    """Base, hops and seconds give what `sqsdelay cost` bills, to the last digit, for any message."""
    load = Workload(
        delay_seconds=delay_seconds,
        messages=MANY,
        message_bytes=message_bytes,
        batch=1 if strategy == "eventbridge-scheduler" else batch,
        park_after_seconds=0,
    )
    bill = bill_of(strategy, **asdict(load))
    parked_too_near = strategy == "parked" and not load.hops
    each = rate("relay" if parked_too_near else strategy, message_bytes, load.batch, PRICES)
    if bill.impossible:
        assert each is None
        return
    assert each is not None
    base, hop, second = each
    assert (base + hop * load.hops + second * delay_seconds) * MANY == bill.for_messages
    assert strategy != "relay" or hop > 0 == second
    assert strategy != "parked" or parked_too_near or second > 0 == hop


def test_ways_are_named_and_sorted() -> None:
    """One for each time to park after, once; parking is decided after 900 s in the delay queue."""
    for after, delay, strategy in (
        (3600, 4500, "relay"),
        (3600, 4501, "parked"),
        (0, 901, "parked"),
    ):
        assert ways([after])[2].strategy_of(delay) == strategy
    assert [way.name for way in ways([8100, 3600, 3600])] == [
        "hops, one by one",
        "hops, in tens",
        "DynamoDB, parked after 1 h",
        "DynamoDB, parked after 2.25 h",
        "EventBridge Scheduler alone",
    ]
    with pytest.raises(ConfigurationError, match="park_after_seconds=-1; use 0 or more"):
        ways([-1])


@pytest.mark.parametrize(
    ("delay", "name"),
    [(0, "up to 1 min"), (60, "up to 1 min"), (61, "up to 15 min"), (900, "up to 15 min"),
     (901, "up to 1 h"), (YEAR, "up to 1 year"), (YEAR + 1, "above 1 year")],
)  # fmt: skip
def test_bands_end_with_their_last_second(delay: int, name: str) -> None:
    """Edges belong to the band below."""
    assert BANDS[band_of(delay)].name == name
