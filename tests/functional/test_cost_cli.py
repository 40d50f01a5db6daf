"""``sqsdelay cost`` as people call it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sqsdelay.cli import app
from sqsdelay.cli.cost import parse_size
from sqsdelay.cost import dollars, shipped_text
from sqsdelay.errors import ConfigurationError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cost", *arguments])


def as_json(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_year_is_told_as_documented() -> None:
    """The documentation's $0.03504 for one message, exactly, and every other way beside it."""
    told = as_json("--delay", "365d")
    totals = {s["strategy"]: s.get("total") for s in told["strategies"]}
    assert totals["formula"] == "0.03504"
    assert totals["eventbridge-scheduler"] == "0.0000014"
    assert totals["step-functions"] is None
    assert told["recommended"][0] == {"deploy": "no store", "strategy": "relay"}
    assert set(totals) >= {each["strategy"] for each in told["recommended"]} >= {"relay", "parked"}


def test_a_recommendation_comes_first_in_words() -> None:
    """Its sum and parts, what the sender would save, the two next best and plain EventBridge; no codes."""
    shape = ("--delay", "365d", "--messages", "1000000", "--batch", "10", "--size", "200")
    first, parts, apart, fifo, sender, *others = run(*shape).stdout.splitlines()
    assert first == (
        "Recommended is EventBridge Scheduler, parked by the delay consumer (-c store=scheduler): "
        "81.79 USD for 1,000,000 messages, 1,000 due together"
    )
    assert parts.startswith("  1.77 for the messages;")
    assert parts.endswith("75.60 for CloudWatch")
    assert "compute 0.4454; assumed: delay consumer, 100 ms a run; parking queue, 8 ms" in apart
    assert fifo == "  not in it: 3.36 more where the destination is a FIFO queue"
    assert sender == "  1.55 for the messages if the sender parks them (docs/parking.md)"
    assert [line.partition(":")[0] for line in others] == ["Next", "Next", "Without sqsdelay"]
    assert others[2].endswith("EventBridge Scheduler alone: 1.40; each up to a minute late")
    one_by_one = run("--delay", "365d", "--messages", "1000000", "--size", "200").stdout
    assert "\n  1.60 for the messages if the sender parks them (docs/parking.md)\n" in one_by_one
    large = run(*shape[:-1], "300000").stdout
    assert large.startswith("Recommended is S3, parked by functions (-c store=s3): ")
    assert "EventBridge Scheduler alone: a schedule holds 262144 bytes" in large


def test_a_short_delay_parks_nothing_and_says_so() -> None:
    """All that `cdk deploy` makes would hop, or use SQS's own timer: no store is told of."""
    for delay in ("1h", "10m"):
        told = run("--delay", delay).stdout
        assert told.startswith("Recommended is hops (no store): ")
        assert "\nNext" not in told
    for delay, refused in (("3650d", False), ("3651d", True)):
        assert ("senders refuse more" in run("--delay", delay).stdout) == refused


def test_a_store_that_cannot_find_own_ids_says_so() -> None:
    """The deployed S3 store keeps no look-ups, and is behind the sender's, which does."""
    shape = ("--delay", "365d", "--size", "500000", "--messages", "1000")
    first, *_, found, hops, _ = run(*shape, "--own-ids").stdout.splitlines()
    assert first.startswith("Recommended is S3, parked by the sender (-c store=s3): ")
    assert found == "  to find ids of your own the store's URL ends in ?lookup=on"
    assert hops.startswith("Next: hops (no store): ")
    assert hops.endswith("; messages with ids of your own cannot be found, to cancel or move them")
    assert "cannot be found" not in run(*shape).stdout


def test_what_is_late_or_lost_says_so_first() -> None:
    """A hundred million in the same second take hours, everywhere; of too many that wait, some are lost."""
    shape = ("--delay", "30d", "--messages", "100000000", "--batch", "10")
    together = (*shape, "--due-together", "100000000")
    told = run(*together).stdout
    assert told.startswith("Best, though late, is S3, parked by the sender")
    assert "  the last message arrives 13.6 h late" in told
    assert "Late is reckoned as deployed" in told
    found = {e["strategy"]: e.get("late_seconds") for e in as_json(*together)["strategies"]}
    assert found["parked-in-s3-by-functions"] > 12 * 3600
    large = run(*shape, "--size", "300000", "--all")
    assert large.stdout.startswith("Recommended is S3, parked by the sender")
    why = "hops: messages would be lost: copies wait up to 44.2 days in the delay queue, and SQS drops"
    assert why in " ".join(large.stderr.split())
    lost = ("--delay", "1h", "--messages", "1000000000", "--size", "300000")
    assert run(*lost).stdout.startswith("None holds them as deployed. hops: messages would be lost")
    assert as_json(*lost)["recommended"] == []


def test_all_ways_have_a_row_the_prices_a_date() -> None:
    """What a program reads: cells apart by tabs."""
    shape = ("--delay", "30d", "--messages", "1000000", "--batch", "10", "--size", "4KB")
    done = run(*shape, "--all")
    assert done.exit_code == 0
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}
    assert rows["NServiceBus's documented formula"] == ["2,880.00", "0.00", "2,880.00", "0.00288"]
    assert rows["Step Functions"] == ["50.40", "0.00", "50.40", "0.0000504"]
    assert "prices read on 2026-11-20" in " ".join(done.stderr.split())


def test_prices_of_ones_own(tmp_path: Path) -> None:
    """The shipped file, changed: the sums follow."""
    shown = run("--show-prices")
    assert shown.stdout == shipped_text()
    mine = tmp_path / "prices.json"
    mine.write_text(shown.stdout.replace('"0.50"', '"1.00"'))
    told = as_json("--delay", "365d", "--prices", str(mine))
    assert told["strategies"][0]["total"] == "0.07008"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--delay", "soon"], "'soon' is not valid"),
        (["--delay", "1d", "--size", "big"], "size 'big' is not valid; use bytes (500), 4KB"),
        (["--delay", "1d", "--size", "2MB"], "message_bytes=2097152; use a whole number"),
        (["--delay", "1d", "--messages", "0"], "messages=0; use a whole number"),
        (["--delay", "1d", "--batch", "11"], "batch=11; use a whole number, 1 to 10"),
    ],
)
def test_bad_input_is_a_clear_error(arguments: list[str], told: str) -> None:
    """Value, limit, remedy."""
    done = run(*arguments)
    assert done.exit_code == 1
    assert told in str(done.exception)


def test_a_delay_is_asked_for_and_a_bad_price_file_named(tmp_path: Path) -> None:
    """There is no default to mistake for one's own."""
    done = run()
    assert (done.exit_code, "--delay 365d" in done.stderr) == (2, True)
    (mine := tmp_path / "mine.json").write_bytes(b"\xff")
    told = run("--delay", "1d", "--prices", str(mine)).exception
    assert "mine.json cannot be read" in str(told)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500B", 500), ("4KB", 4096), ("4 KiB", 4096), ("1M", 1_048_576)]
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    """A KB is 1,024 bytes, as in AWS's limits."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5KB", "1TB", "KB"])
def test_other_sizes_are_refused(text: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match=r"is not valid; use bytes \(500\), 4KB or 1000KB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("amount", "told"),
    [("0", "0.00"), ("0.03504", "0.03504"), ("0.0000004", "0.0000004"), ("0.00012345", "0.0001234"),
     ("0.99999", "1"), ("1234.5", "1,234.50")],
)  # fmt: skip
def test_amounts_for_people(amount: str, told: str) -> None:
    """Cents from a dollar on, four significant digits below."""
    assert dollars(Fraction(amount)) == told
