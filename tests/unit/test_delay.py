"""Delay arithmetic and the decision at a hop: exact, rounded up, and refused where it makes no sense."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsdelay.core import on_first_use
from sqsdelay.core.delay import (
    Decision,
    DueTime,
    HandOver,
    Requeue,
    check_hop,
    checked_due_ms,
    checked_max_delay,
    decide,
    delay_ms,
    due_at_ms,
    due_time,
    seconds_until,
    too_far,
    utc,
)
from sqsdelay.core.limits import MAX_BATCH_BYTES, MAX_BATCH_ENTRIES, MAX_DUE_MS
from sqsdelay.core.message import Message, full_batches
from sqsdelay.core.readable import attributes_of_texts, parse_delay, parse_due_at
from sqsdelay.core.stored_message import to_store
from sqsdelay.errors import ConfigurationError, InvalidDelay, InvalidMessage

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (0, 0),
        (timedelta(0), 0),
        (0.0005, 1),
        (MAX_DUE_MS // 1000, MAX_DUE_MS // 1000 * 1000),
        (timedelta(milliseconds=MAX_DUE_MS), MAX_DUE_MS),
        (-0.0, 0),
        (900, 900_000),
        (900.0001, 900_001),
        (1.5, 1_500),
        (timedelta(minutes=32, seconds=5), 1_925_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=365), 31_536_000_000),
    ],
)
def test_a_delay_becomes_milliseconds_rounded_up(delay: Any, milliseconds: int) -> None:
    """Whatever a caller may write for a delay, no part of it is dropped."""
    assert delay_ms(delay) == milliseconds


@given(st.floats(min_value=0, max_value=1e10))
def test_a_fractional_delay_is_never_shortened(delay: float) -> None:
    """Rounding is towards later, by less than two milliseconds; 0.05 is 50 ms, as its writer means."""
    precision = Fraction(delay) / 2**52
    assert -precision <= Fraction(delay_ms(delay), 1000) - Fraction(delay) < Fraction(2, 1000)


@pytest.mark.parametrize(
    "delay", [-1, -0.0001, -1e300, -(10**18), timedelta(microseconds=-1), timedelta(days=-1)]
)
def test_a_negative_delay_is_refused(delay: Any) -> None:
    """A negative delay is a mistake of the caller's, unlike a due time that has passed."""
    with pytest.raises(InvalidDelay, match=r"is negative; use 0 or more"):
        delay_ms(delay)


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), "90", True, Decimal(5), None])
def test_what_is_no_number_of_seconds_is_refused(delay: Any) -> None:
    """The error names the value and what to give instead."""
    with pytest.raises(InvalidDelay, match="give a timedelta or seconds"):
        delay_ms(delay)


@pytest.mark.parametrize("delay", [2**63, 10**400, 1e300, timedelta.max, MAX_DUE_MS // 1000 + 1])
def test_a_delay_past_the_year_9999_is_refused(delay: Any) -> None:
    """No clock can show when such a message would be due."""
    with pytest.raises(InvalidDelay, match="year 9999"):
        delay_ms(delay)


def test_due_at_is_the_instant_whatever_its_offset() -> None:
    """The same instant in two time zones is the same due time."""
    eastern = timezone(timedelta(hours=-5))
    assert due_at_ms(datetime(2027, 1, 1, 7, tzinfo=eastern)) == due_at_ms(
        datetime(2027, 1, 1, 12, tzinfo=UTC)
    )
    assert due_at_ms(datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)) == 1


@pytest.mark.parametrize("offset_hours", [-14, 0, 14])
def test_the_distant_past_is_past(offset_hours: int) -> None:
    """Even the first instant a datetime can name, in any time zone."""
    first = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=offset_hours)))
    assert utc(due_at_ms(first)) == datetime(1970, 1, 1, tzinfo=UTC)


def test_due_at_without_a_time_zone_is_refused() -> None:
    """A naive time means another instant on every machine."""
    with pytest.raises(InvalidDelay, match="2027-01-01T00:00:00' has no time zone"):
        due_at_ms(datetime(2027, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidDelay, match="give a datetime"):
        due_at_ms("2027-01-01")  # type: ignore[arg-type]


def test_the_latest_due_time_is_the_end_of_the_year_9999() -> None:
    """The limit itself passes, a millisecond more does not."""
    assert utc(checked_due_ms(MAX_DUE_MS)) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    with pytest.raises(InvalidDelay, match="give a shorter delay"):
        checked_due_ms(MAX_DUE_MS + 1)


@pytest.mark.parametrize(
    ("due", "now", "seconds"), [(1000, 0, 1), (1001, 0, 2), (1, 0, 1), (0, 0, 0), (0, 5000, 0)]
)
def test_remaining_seconds_are_rounded_up_and_never_negative(
    due: int, now: int, seconds: int
) -> None:
    """A started second counts whole; the past is 0."""
    assert seconds_until(due, now) == seconds


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("90", timedelta(seconds=90)),
        ("1.5", timedelta(seconds=1.5)),
        ("32m5s", timedelta(minutes=32, seconds=5)),
        ("1d12h", timedelta(hours=36)),
        ("2w", timedelta(weeks=2)),
        ("500ms", timedelta(milliseconds=500)),
        (" 5m3ms ", timedelta(minutes=5, milliseconds=3)),
        ("PT32M5S", timedelta(minutes=32, seconds=5)),
        ("P30D", timedelta(days=30)),
        ("p1dt2h", timedelta(hours=26)),
        ("0", timedelta(0)),
        ("0.0001s", timedelta(milliseconds=1)),
    ],
)
def test_a_delay_can_be_written_as_people_write_it(text: str, delay: timedelta) -> None:
    """Seconds, compact units and ISO 8601 are understood."""
    assert parse_delay(text) == delay


@pytest.mark.parametrize(
    "text",
    [
        *("", "P", "PT", "-5", "1y", "P1M", "5x", "s", "1h 5m", "٣", "9" * 16, "1e3"),
        *("1M", "6M", "1d6M", "1.5M"),
    ],
)
def test_a_delay_that_is_not_understood_is_refused(text: str) -> None:
    """Guessing would send a message at the wrong time; months have no fixed length."""
    with pytest.raises(InvalidDelay, match="is not valid"):
        parse_delay(text)


@given(st.text(max_size=30))
def test_any_text_is_a_delay_or_an_invalid_delay(text: str) -> None:
    """No other error escapes."""
    with contextlib.suppress(InvalidDelay):
        assert parse_delay(text) >= timedelta(0)


def test_a_due_time_is_iso_8601_with_an_offset() -> None:
    """Z and offsets are read; a missing offset or other text is refused with an example."""
    assert parse_due_at("2027-01-31T09:00:00Z") == datetime(2027, 1, 31, 9, tzinfo=UTC)
    assert parse_due_at("2027-01-31T11:00:00+02:00") == datetime(2027, 1, 31, 9, tzinfo=UTC)
    with pytest.raises(InvalidDelay, match="has no time zone"):
        parse_due_at("2027-01-31T09:00:00")
    with pytest.raises(InvalidDelay, match=r"write e\.g\. 2027-01-31T09:00:00Z"):
        parse_due_at("tomorrow")


def test_the_longest_delay_as_text() -> None:
    """To the millisecond; one more ends after the year 9999."""
    assert parse_delay(f"{MAX_DUE_MS}ms") == timedelta(milliseconds=MAX_DUE_MS)
    with pytest.raises(InvalidDelay, match="ends after the year 9999"):
        parse_delay(f"{MAX_DUE_MS + 1}ms")
    with pytest.raises(InvalidDelay, match="year 9999"):
        parse_delay("999999999w")


@pytest.mark.parametrize(
    ("due", "given", "absolute", "due_ms"),
    [
        (due_time(None, None), False, False, 7_000),
        (due_time(0, None), True, False, 7_000),
        (due_time(timedelta(seconds=1.5), None), True, False, 8_500),
        (due_time(None, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)), True, True, 2_000),
        (due_time(None, datetime(1960, 1, 1, tzinfo=UTC)), True, True, 0),
    ],
)
def test_a_delay_counts_from_now_and_a_due_time_from_nothing(
    due: DueTime, given: bool, absolute: bool, due_ms: int
) -> None:
    assert (due.given, due.absolute, due.due_ms(7_000)) == (given, absolute, due_ms)


def test_no_due_time_lies_after_the_last_year() -> None:
    assert DueTime(delay_ms=1).due_ms(MAX_DUE_MS - 1) == MAX_DUE_MS
    with pytest.raises(InvalidDelay, match="after the limit"):
        DueTime(delay_ms=1).due_ms(MAX_DUE_MS)
    with pytest.raises(InvalidDelay, match="after the limit"):
        DueTime(at_ms=MAX_DUE_MS + 1).due_ms(0)


def test_a_store_takes_what_a_sender_takes() -> None:
    """Both build from one checked message: what SQS would refuse when it is due is refused now."""
    with pytest.raises(InvalidMessage, match="trace_header=''"):
        to_store(Message("x", trace_header=""), "orders", now_ms=0)


def batches(*sizes: int) -> list[list[int]]:
    return list(full_batches(sizes, target=lambda _: "orders", size=lambda size: size))


def test_a_batch_may_be_full_to_the_byte() -> None:
    """The limit itself is allowed, twice in a row; one byte more begins the next batch."""
    half = MAX_BATCH_BYTES // 2
    assert batches(half, half, half, half) == [[half, half], [half, half]]
    assert batches(half, half + 1, half - 1) == [[half], [half + 1, half - 1]]
    assert batches(MAX_BATCH_BYTES, MAX_BATCH_BYTES) == [[MAX_BATCH_BYTES], [MAX_BATCH_BYTES]]


def test_a_batch_has_ten_entries_at_most() -> None:
    """The eleventh begins the next."""
    assert [len(batch) for batch in batches(*[1] * 21)] == [MAX_BATCH_ENTRIES, MAX_BATCH_ENTRIES, 1]


@pytest.mark.parametrize(
    ("remaining_ms", "decision"),
    [
        (-1, HandOver(0)),
        (0, HandOver(0)),
        (1, HandOver(1)),
        (899_001, HandOver(900)),
        (900_000, HandOver(900)),
        (900_001, Requeue()),
        (901_000, Requeue()),
        (31_536_000_000, Requeue()),
    ],
)
def test_edges_of_the_message_timer(remaining_ms: int, decision: Decision) -> None:
    """Up to 900 s, rounded up, a message timer holds it; a millisecond more takes another hop."""
    assert decide(NOW + remaining_ms, NOW, hop_seconds=900) == decision


@given(
    st.integers(0, 253_402_300_799_000), st.integers(0, 253_402_300_799_000), st.integers(1, 900)
)
def test_a_hand_over_is_never_early_nor_a_second_late(due: int, now: int, hop: int) -> None:
    """The message timer ends at or after due, by less than a second if due has not passed."""
    decision = decide(due, now, hop_seconds=hop)
    if isinstance(decision, HandOver):
        assert 0 <= decision.delay_seconds <= hop
        shown = now + decision.delay_seconds * 1000
        assert shown >= due
        assert shown - max(due, now) < 1000
    else:
        assert isinstance(decision, Requeue)
        assert due - now > hop * 1000


@pytest.mark.parametrize("hop_seconds", [1, 900])
def test_the_shortest_and_the_longest_hop(hop_seconds: int) -> None:
    """Both are a delay queue's."""
    check_hop(hop_seconds)


@pytest.mark.parametrize("seconds", [900, 901, 3600, MAX_DUE_MS // 1000])
def test_the_farthest_delay_of_an_endpoint(seconds: int) -> None:
    """From what plain SQS delays to the year 9999, both included; to the second, rounded up."""
    assert checked_max_delay(seconds) == seconds
    assert too_far(NOW + seconds * 1000, NOW, seconds) is None
    assert f"due in {seconds + 1} s" in str(too_far(NOW + seconds * 1000 + 1, NOW, seconds))


@pytest.mark.parametrize("seconds", [899, MAX_DUE_MS // 1000 + 1, "3600", 3600.0, None, True])
def test_no_farthest_delay(seconds: int) -> None:
    """Below, beyond, and what a settings file may hold."""
    with pytest.raises(ConfigurationError, match=f"max_delay_seconds={seconds!r}; use 900 "):
        checked_max_delay(seconds)


def test_attributes_in_text_are_of_a_type() -> None:
    """Without one, a String; a Binary value is base64."""
    assert attributes_of_texts(["tenant=acme=b", "tries:Number=3", "key:Binary.x=AAE="]) == {
        "tenant": {"DataType": "String", "StringValue": "acme=b"},
        "tries": {"DataType": "Number", "StringValue": "3"},
        "key": {"DataType": "Binary.x", "BinaryValue": b"\x00\x01"},
    }


def test_a_name_is_loaded_when_it_is_asked_for() -> None:
    """From the module that has it; as of any module, another is an AttributeError."""
    load = on_first_use("a.package", {"json": "dumps loads", "math": "sqrt"})
    names = ["dumps", "loads", "sqrt"]
    assert [load(name).__name__ for name in names] == names
    with pytest.raises(AttributeError, match=r"^module 'a\.package' has no attribute 'cbrt'$"):
        load("cbrt")
