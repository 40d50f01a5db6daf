"""What delays cost: the documented formula, and what really happens, to the last digit."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ledger
from sqsdelay.core.checked_message import new_message_id
from sqsdelay.core.stored_message import StoredMessage
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
from sqsdelay.cost.strategies import (
    DYNAMODB_ON_TIME,
    PARKED_A_SECOND,
    RECEIVERS,
    RELAYED_ON_TIME,
    S3_ON_TIME,
    SCHEDULES_ON_TIME,
    due_queue,
    rate,
    ways,
)
from sqsdelay.cost.workload import BANDS, DISPATCH_MS, LAMBDA_POLLERS, band_of, invocation_cost
from sqsdelay.errors import ConfigurationError
from sqsdelay.sqs.receivers import LEAST_RECEIVERS
from sqsdelay.stores.dynamodb.layout import Entry, Lane, Layout, Place
from sqsdelay.stores.dynamodb.layout import item_bytes as item_size
from sqsdelay.stores.s3.layout import DEFAULT_SLOTS
from sqsdelay.stores.s3.s3_store import GATHER_MS, TURN_SECONDS, S3Store
from sqsdelay.stores.s3.wheel import MAX_OBJECT_MESSAGES

YEAR = 365 * 24 * 3600
DAY = 24 * 3600
DYNAMODB = "-c store=dynamodb"
PRICES = shipped_prices()


def usd(text: str) -> Fraction:
    return Fraction(text)


def bill_of(strategy: str, **load: Any) -> Bill:
    return bill(strategy, Workload(**load), PRICES)


def quantities(bill: Bill, word: str) -> list[Fraction]:
    return [Fraction(line.quantity) for line in bill.lines if word in line.what and not line.fixed]


def test_the_documented_year_costs_exactly_0_03504() -> None:
    """35,040 cycles, two operations each, at $0.50 per million."""
    bill = bill_of("formula", delay_seconds=YEAR)
    assert bill.lines[0].quantity == 70_080
    assert bill.total == usd("0.03504")


@pytest.mark.parametrize(
    ("seconds", "cycles"), [(0, 0), (845, 0), (900, 0), (901, 1), (1925, 2), (YEAR, 35_040)]
)
def test_the_documented_formula_counts_whole_cycles(seconds: int, cycles: int) -> None:
    """Up to 900 s there is no cycle; 1,925 s are the documented two."""
    bill = bill_of("formula", delay_seconds=seconds)
    assert bill.lines[0].quantity == 2 * cycles


@pytest.mark.parametrize(
    ("seconds", "hops"), [(0, 0), (900, 0), (901, 1), (1800, 1), (1801, 2), (YEAR, 35_039)]
)
def test_hops_are_all_but_the_last_message_timer(seconds: int, hops: int) -> None:
    """The hand-over's message timer holds the last 900 s or less."""
    assert Workload(delay_seconds=seconds).hops == hops


def test_a_relayed_year_is_three_requests_a_hop() -> None:
    """Send, receive and delete of 35,039 hops, and the last send to the destination."""
    bill = bill_of("relay", delay_seconds=YEAR)
    assert quantities(bill, "SQS FIFO") == [105_117]
    assert quantities(bill, "SQS standard") == [1]
    assert quantities(bill, "Lambda requests") == [35_039]
    sqs = [line.amount for line in bill.lines if "SQS" in line.what and not line.fixed]
    assert sum(sqs) == usd("0.0525589")


def test_full_batches_divide_requests_by_ten() -> None:
    """A million messages in tens are a tenth of the requests, the last batch included."""
    bill = bill_of("relay", delay_seconds=1800, messages=1_000_001, batch=10)
    assert quantities(bill, "SQS FIFO") == [3 * 100_001]
    assert quantities(bill, "SQS standard") == [100_001]


def test_up_to_900_seconds_every_way_of_ours_is_one_send() -> None:
    """A message timer holds it: no hop, no store, no function."""
    for strategy in ("relay", "parked", "stored", "parked-in-s3"):
        assert bill_of(strategy, delay_seconds=900).total == usd("0.0000004")


@pytest.mark.parametrize(
    ("message_bytes", "batch", "billed"),
    [(65_455, 1, 1), (65_456, 1, 2), (6_472, 10, 1), (6_473, 10, 2), (1_000_000, 1, 16)],
)
def test_each_64_kib_begun_is_a_request(message_bytes: int, batch: int, billed: int) -> None:
    """The payload counts with the 81 bytes that the delay adds, over the whole batch."""
    load = Workload(delay_seconds=1800, messages=batch, batch=batch, message_bytes=message_bytes)
    assert load.billed_requests == billed
    assert quantities(bill_of("relay", **_fields(load)), "SQS FIFO") == [2 * billed + 1]


def _fields(load: Workload) -> dict[str, int]:
    names = ("delay_seconds", "messages", "batch", "message_bytes")
    return {name: getattr(load, name) for name in names}


def test_a_batch_of_large_messages_is_as_full_as_1_mib_allows() -> None:
    """Ten of 300 KiB do not fit one request: three do."""
    load = Workload(delay_seconds=1800, messages=10, batch=10, message_bytes=300 * 1024)
    assert load.billed_requests == 3 * 15 + 5


def test_a_parked_message_is_written_once() -> None:
    """964 bytes and sqsdelay's 60 are one write unit; a byte more are two. Nothing is claimed, no
    index is written, time to live deletes for nothing."""
    small = bill_of("parked", delay_seconds=YEAR, message_bytes=964)
    large = bill_of("parked", delay_seconds=YEAR, message_bytes=965)
    assert quantities(small, "write units") == [1]
    assert quantities(large, "write units") == [2]
    assert quantities(small, "lease writes") == [2]
    together = bill_of("parked", delay_seconds=YEAR, messages=1000, batch=10)
    assert quantities(together, "lease writes") == [32]
    own = bill_of("parked", delay_seconds=YEAR, messages=1000, own_ids=True)
    assert quantities(own, "ids of your own") == [1000]
    assert quantities(small, "SQS FIFO") == [3]
    assert quantities(small, "cancelled or moved") == [2]
    assert quantities(bill_of("stored", delay_seconds=YEAR), "SQS FIFO") == []


def test_storage_is_billed_for_the_whole_delay_and_until_it_expires() -> None:
    """A million items of 724 + 60 + 100 bytes for twelve months and two weeks."""
    bill = bill_of("stored", delay_seconds=YEAR, messages=10**6, message_bytes=724)
    months = 12 + Fraction(14 * 12, 365)
    assert quantities(bill, "storage") == [Fraction(10**6 * 884, 2**30) * months]


def test_standard_ia_stores_for_less_and_writes_for_more() -> None:
    """A year is cheaper on it, an hour dearer."""
    for seconds, cheaper in ((YEAR, True), (3600, False)):
        shape: dict[str, Any] = {
            "delay_seconds": seconds,
            "messages": 1000,
            "message_bytes": 204,
            "batch": 10,
        }
        rare = bill_of("stored", **shape, infrequent_access=True).for_messages
        assert (rare < bill_of("stored", **shape).for_messages) is cheaper


def test_the_sizes_counted_are_those_of_the_stores_items() -> None:
    """An item, measured as DynamoDB does, fits what the sum says."""
    due_ms = 1_800_000_000_000
    message_id = new_message_id(due_ms)
    message = StoredMessage(message_id=message_id, destination="orders", due_ms=due_ms, body=b"x")
    place = Place(due_ms, message_id, Lane.FAR, 7)
    item = Layout("orders").item(Entry(place, message, False))
    assert item_size(item) - len(message.body) == ITEM_BYTES


def test_what_a_service_cannot_do_has_a_reason_and_no_price() -> None:
    """A year outlasts a Step Functions execution; 400 KiB outgrow a DynamoDB item."""
    assert "one year" in (bill_of("step-functions", delay_seconds=YEAR).impossible or "")
    assert bill_of("step-functions", delay_seconds=YEAR - 1).total == usd("0.0000504")
    large = bill_of("parked", delay_seconds=YEAR, message_bytes=500_000)
    assert "409600 bytes" in (large.impossible or "")


def test_eventbridge_scheduler_is_an_invocation_and_a_send() -> None:
    """A million schedules: $1.00, and $0.40 for the sends to the queue."""
    bill = bill_of("eventbridge-scheduler", delay_seconds=YEAR, messages=10**6, batch=10)
    assert bill.total == usd("1.40")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay_seconds", -1),
        ("messages", 0),
        ("message_bytes", 1_048_576),
        ("batch", 11),
        ("batch", True),
        ("hop_seconds", 901),
    ],
)
def test_a_workload_out_of_range_is_refused(field: str, value: int) -> None:
    """Value, limits, and which field."""
    fields: dict[str, Any] = {"delay_seconds": 1, field: value}
    with pytest.raises(ConfigurationError, match=f"{field}={value}; use a whole number"):
        Workload(**fields)


def test_the_shipped_prices_say_where_and_when() -> None:
    """Prices change: the file is dated, and every price is a decimal."""
    assert date(2026, 1, 1) < PRICES.read_on
    assert PRICES.region == "us-east-1"
    assert PRICES.sqs_fifo_request == usd("0.0000005")
    assert PRICES.lambda_arm64_gb_second == usd("0.0000133334")


def changed(**changes: Any) -> str:
    data = json.loads(shipped_text())
    prices = changes.pop("prices", {})
    data |= changes
    data["prices"] |= prices
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", 'no object "prices"'),
        (changed(prices={"sqs": "1"}), "names 'sqs'; known are sqs_standard_million_requests"),
        (changed(prices={"dynamodb_gb_month": 0.25}), "write a decimal in quotes"),
        (changed(prices={"dynamodb_gb_month": "-1"}), "write a decimal in quotes"),
        (changed(prices={"dynamodb_gb_month": "NaN"}), "write a decimal in quotes"),
        (changed(prices={"dynamodb_gb_month": "cheap"}), "write a decimal in quotes"),
        (changed(prices={"dynamodb_gb_month": None}), "has no 'dynamodb_gb_month'"),
        (changed(read_on="yesterday"), "write the day"),
        (changed(region=None), "region is None"),
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
        near, far = (
            [bill_of(way, delay_seconds=each, park_after_seconds=0) for way in (strategy, "relay")]
            for each in (least - 1, least)
        )
        assert near[0].for_messages == near[1].for_messages
        assert far[0].for_messages != far[1].for_messages


@pytest.mark.parametrize(
    ("millions", "days", "dollars_each"), [(1, 365, 1.60), (1, 30, 1.56), (100, 365, 1.55)]
)
def test_sent_singly_and_due_apart_a_million_schedules_cost_little_more_than_amazons(
    millions: int, days: int, dollars_each: float
) -> None:
    """$1.40 alone, and a minute off. What is due in the same five minutes shares its requests."""
    many = {"messages": millions * 10**6, "message_bytes": 200, "batch": 1}
    bill = bill_of("scheduled-by-sender", delay_seconds=days * 86_400, **many)
    assert float(bill.for_messages) / millions <= dollars_each


@pytest.mark.parametrize(
    ("load", "deploy"),
    [
        ({"delay_seconds": 600}, "no store"),
        ({"delay_seconds": 3_600}, "no store"),
        ({"delay_seconds": YEAR}, "-c store=scheduler"),
        ({"delay_seconds": YEAR, "messages": 30 * 10**6}, "-c store=s3"),
        # Found by their own ids, for $9 more.
        ({"delay_seconds": YEAR, "messages": 30 * 10**6, "own_ids": True}, "-c store=scheduler"),
        ({"delay_seconds": YEAR, "messages": 1, "own_ids": True}, "-c store=scheduler"),
        # More than S3, or the delay queue, brings on time.
        ({"delay_seconds": 3 * DAY, "messages": 10**6, "due_together": 10**6}, "-c store=s3"),
        ({"delay_seconds": DAY, "messages": 2 * 10**6, "due_together": 2 * 10**6}, DYNAMODB),
        ({"delay_seconds": 30 * DAY, "messages": 10**8, "due_together": 10**8}, DYNAMODB),
    ],
)
def test_the_cheapest_that_is_on_time_and_finds_messages_is_recommended(
    load: dict[str, Any], deploy: str
) -> None:
    """Hops while they are few; nothing that runs where few messages wait for long; S3 for many."""
    shape = Workload(**{"messages": 10**6, "batch": 10, **load})
    advice = recommend(shape, PRICES)
    assert advice[0][0] == deploy
    assert not {bill.strategy for _, bill in advice} & {"stored", "scheduled-by-sender"}
    if not load.keys() & {"own_ids", "due_together"}:
        totals = [bill.total for _, bill in advice]
        assert totals == sorted(totals)


@pytest.mark.parametrize(
    ("strategy", "load", "late"),
    [
        ("parked-in-s3-by-functions", {"due_together": 10**8}, "12.9 h"),
        ("parked", {"due_together": 10**8}, "5.4 h"),
        ("scheduled", {"due_together": 10**8}, "27.5 h"),
        ("eventbridge-scheduler", {"due_together": 10**8}, "27.8 h"),
        ("parked-in-s3-by-functions", {}, None),
        ("relay", {}, "22.5 h"),
        ("relay", {"messages": 1_100_000}, None),
        ("relay", {"messages": 74_000, "delay_seconds": 901, "due_together": 74_000}, None),
        ("relay", {"messages": 110_000, "delay_seconds": 901, "due_together": 110_000}, "29 s"),
        ("relay", {"delay_seconds": 900}, None),
        # What is too near to be parked hops.
        ("parked-in-s3-by-functions", {"delay_seconds": 7_200}, "22.5 h"),
        # Parked at 720 a second, of which the first hop takes 900 s.
        ("parked", {"messages": 10**7, "delay_seconds": 3 * 3600, "due_together": 10**7}, "1.1 h"),
        # A body of 1 MiB is 16 requests: ten of them take as long as 160 in tens.
        (
            "parked-in-s3",
            {"messages": 11_875, "message_bytes": 10**6, "due_together": 11_875},
            None,
        ),
        (
            "parked-in-s3",
            {"messages": 20_000, "message_bytes": 10**6, "due_together": 20_000},
            "616 s",
        ),
    ],
)
def test_what_cannot_be_released_in_time_says_how_late_it_is(
    strategy: str, load: dict[str, Any], late: str | None
) -> None:
    """By rates of the capacity page, as deployed; what is not told to be due together comes evenly."""
    found = bill_of(strategy, **{"delay_seconds": 30 * DAY, "messages": 10**8, "batch": 10, **load})
    told = [each for each in found.warnings if each.startswith("the last message arrives")]
    assert told == ([f"the last message arrives {late} late"] if late else [])
    assert (found.late_seconds > 0) == (late is not None)


def test_the_rates_are_those_of_the_capacity_page() -> None:
    """Of the functions as they are deployed."""
    guide = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text()
    rows = {
        "relay: function, 10 at once (as deployed)": RELAYED_ON_TIME,
        "parked: function on DynamoDB (as deployed)": DYNAMODB_ON_TIME,
        "parked: function on S3 (as deployed)": S3_ON_TIME,
    }
    for name, on_time in rows.items():
        (row,) = [line for line in guide.splitlines() if line.startswith(f"| {name} |")]
        assert row.split(" | ")[3] == f"{on_time:,}"
    assert f"The deployed function parks {PARKED_A_SECOND} messages a second." in guide
    assert f"By default {SCHEDULES_ON_TIME:,} messages due in one second are on" in guide


def test_a_quota_that_has_to_be_raised_is_told() -> None:
    """Ten million schedules."""
    for strategy in ("scheduled", "eventbridge-scheduler"):
        many, few = (bill_of(strategy, delay_seconds=YEAR, messages=n) for n in (10**7 + 1, 10**7))
        assert few.warnings == ()
        assert many.warnings == ("ask AWS for a higher quota of schedules than 10,000,000",)


def test_logs_are_in_the_bill_and_a_fifo_queue_beside_it() -> None:
    """A line of metrics for each run, by `benchmarks.ledger`; a due queue's requests, runs and polls."""
    (line,) = [e for e in bill_of("relay", delay_seconds=901).lines if "Logs" in e.what]
    told = re.search(r"1 copies a run: (\d+) bytes", ledger.metrics())
    assert told is not None
    assert abs(float(line.quantity * 2**30) - int(told[1])) < 10
    load = Workload(delay_seconds=86_400, messages=10)
    polls = 5 * 86_400 // 20
    requests = (20 + polls) * PRICES.sqs_standard_request + 10 * PRICES.sqs_fifo_request
    logs = 10 * line.quantity * PRICES.cloudwatch_logs_gb
    assert due_queue(load, PRICES) == requests + 10 * invocation_cost(PRICES) + logs


def test_what_cloudwatch_takes_is_in_the_bill() -> None:
    """Eight metrics, five alarms and a dashboard a month of an endpoint without a store."""
    month = {"delay_seconds": YEAR // 12}
    assert bill_of("relay", **month).part("CloudWatch") == usd("5.90")
    assert bill_of("parked", **month).part("CloudWatch") == usd("7.40")
    assert bill_of("eventbridge-scheduler", **month).part("CloudWatch") == 0


def test_what_cannot_be_is_not_recommended() -> None:
    """300,000 bytes do not fit a schedule: such messages would hop, at 10,000 times the price."""
    load = Workload(delay_seconds=YEAR, messages=10**6, message_bytes=300_000, batch=10)
    advice = recommend(load, PRICES)
    assert advice[0][0] == "-c store=s3"
    assert "-c store=scheduler" not in dict(advice)
    for strategy in ("scheduled", "scheduled-by-sender", "eventbridge-scheduler"):
        bill = bill_of(strategy, delay_seconds=YEAR, message_bytes=300_000)
        assert "a schedule holds 262144 bytes" in (bill.impossible or "")


@pytest.mark.parametrize(
    ("strategy", "longest_that_hops"),
    [("stored", 8100), ("stored-in-s3", 8100), ("scheduled-by-sender", 8100)]
    + [(name, 9000) for name in ("parked", "parked-in-s3", "scheduled")],
)
def test_what_is_due_soon_hops_as_it_is_deployed(strategy: str, longest_that_hops: int) -> None:
    """A sender parks what has more than 2.25 h, the delay consumer what has after its first hop."""
    for delay_seconds, hops in ((longest_that_hops, True), (longest_that_hops + 1, False)):
        of_hops = quantities(bill_of("relay", delay_seconds=delay_seconds), "SQS FIFO")
        of_it = quantities(bill_of(strategy, delay_seconds=delay_seconds), "a hop")
        assert (of_it == of_hops) == hops


def test_the_dispatcher_is_priced_as_it_is_deployed() -> None:
    """1,769 MB: its time for the messages, and a run a minute whether or not any are due."""
    load = {"delay_seconds": 3600, "messages": 1_000_000, "batch": 10, "park_after_seconds": 0}
    bill = bill_of("stored", **load)
    a_second = Fraction(1769, 1024)
    assert quantities(bill, "GB-seconds (dispatcher)") == [
        1_000_000 * a_second / 1000 * DISPATCH_MS
    ]
    fixed = {line.what: line.quantity for line in bill.lines if line.fixed}
    assert fixed["Lambda requests (dispatcher's schedule)"] == 60
    assert fixed["Lambda GB-seconds (dispatcher's schedule)"] == 60 * a_second / 10


def test_s3_is_priced_as_it_is_deployed() -> None:
    """Ten copies in a message of the parking queue, ten of which are received and deleted at a time; a
    dispatcher that runs each minute, and one more that parks. Large copies are parked without it."""
    load: dict[str, Any] = {"delay_seconds": YEAR, "messages": 10**6, "message_bytes": 204}
    load["batch"] = 10
    deployed = bill_of("parked-in-s3-by-functions", **load)
    parking_queue = "parking queue: send"
    # A receive of a hundred copies is above 64 KiB.
    assert quantities(deployed, parking_queue) == [100_000 + 20_000 + 10_000]
    fixed = {line.what: line.quantity for line in deployed.lines if line.fixed}
    assert fixed["Lambda requests (parking queue's schedule)"] == YEAR // 300
    assert fixed["Lambda requests (dispatcher's schedule)"] == YEAR // 60
    large = load | {"message_bytes": 64 * 1024}
    by_the_consumer = bill_of("parked-in-s3-by-functions", **large)
    assert quantities(by_the_consumer, parking_queue) == []
    # The copies of a run, by the consumer; 6 MB of them at most.
    assert quantities(by_the_consumer, "(objects)") == [100_000]
    larger = bill_of("parked-in-s3-by-functions", **(load | {"message_bytes": 700_000}))
    assert quantities(larger, "(objects)") == [200_000]


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
    cost = base + hop * load.hops + second * delay_seconds
    assert cost * MANY == bill.for_messages


def test_a_relays_rate_grows_with_hops_and_a_stores_with_time() -> None:
    """What is what."""
    relay = rate("relay", 1000, 10, PRICES)
    parked = rate("parked", 1000, 10, PRICES)
    assert relay is not None
    assert parked is not None
    assert relay[1] > 0 == relay[2]
    assert parked[2] > 0 == parked[1]


@pytest.mark.parametrize(
    ("after", "delay", "strategy"),
    [(3600, 4500, "relay"), (3600, 4501, "parked"), (0, 900, "relay"), (0, 901, "parked")],
)
def test_parking_is_decided_at_the_first_hop(after: int, delay: int, strategy: str) -> None:
    """After 900 s in the delay queue, a message is parked if more than ``park_after`` remains."""
    _, _, way, _ = ways([after])
    assert way.strategy_of(delay) == strategy


def test_ways_are_named_and_sorted() -> None:
    """One for each time to park after, once."""
    names = [way.name for way in ways([8100, 3600, 3600])]
    assert names == [
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
