"""docs/parking.md, docs/fifo.md and docs/large-bodies.md do what they say."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.cli.waiting import EXIT_REQUESTED
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import string
from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_SECONDS
from sqsdelay.cost import break_even_seconds, shipped_prices
from sqsdelay.limits import MAX_ENDPOINT_CHARS
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS
from sqsdelay.sending.large_bodies import LEGACY_PAYLOAD_SIZE, PAYLOAD_SIZE, Pointer
from sqsdelay.sqs import create_endpoint
from sqsdelay.stores import open_store
from sqsdelay.testing.local_aws import LocalAws

DOCS = Path(__file__).parents[2] / "docs"


def blocks(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)


@pytest.fixture
def site(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LocalAws:
    """The guides' queues, and this process pointed at them."""
    monkeypatch.chdir(tmp_path)
    for name, value in local_aws.environment().items():
        monkeypatch.setenv(name, value)
    return local_aws


def test_the_parking_guides_python_runs(site: LocalAws) -> None:
    """Parked, listed, moved, cancelled: with the answers it prints."""
    create_endpoint(site.client("sqs"), Endpoint.parse("orders"))
    names: dict[str, Any] = {}
    opening, changing = blocks("parking.md")
    exec(opening, names)
    with closing(open_store(names["url"], endpoint="orders")) as store:
        store.set_up()
        exec(changing.replace("# ['order-7']", "== ['order-7'] or 1 / 0"), names)
        assert store.pending_count() == 0


def test_the_fifo_guides_python_runs(site: LocalAws) -> None:
    """One delayed message to a FIFO queue."""
    created = create_endpoint(site.client("sqs"), Endpoint.parse("payments.fifo"))
    assert len(created) == 4
    (sending,) = blocks("fifo.md")
    exec(sending.replace("orders.fifo", "payments.fifo"), {})


def test_the_large_bodies_guides_python_runs(site: LocalAws) -> None:
    """Sent with a pointer, read back, deleted; the pointer's format is the one shown."""
    create_endpoint(site.client("sqs"), Endpoint.parse("orders"))
    s3 = site.client("s3")
    s3.create_bucket(Bucket="my-bodies")
    names: dict[str, Any] = {}
    sending, reading = blocks("large-bodies.md")
    exec(sending, names)
    (kept,) = s3.list_objects_v2(Bucket="my-bodies")["Contents"]
    pointer = Pointer("my-bodies", kept["Key"]).to_body()
    names["message"] = {"Body": pointer, "MessageAttributes": {PAYLOAD_SIZE: string("2000000")}}
    exec(reading, names)
    assert names["body"] == "x" * 2_000_000
    assert "Contents" not in s3.list_objects_v2(Bucket="my-bodies")
    guide = (DOCS / "large-bodies.md").read_text()
    assert Pointer("my-bodies", "…").to_body().replace("\\u2026", "…") in guide
    assert PAYLOAD_SIZE in guide
    assert LEGACY_PAYLOAD_SIZE in guide


def test_the_guides_numbers_are_the_codes() -> None:
    """Defaults and limits stand once in the code; the guides repeat them."""
    parking, fifo = ((DOCS / name).read_text() for name in ("parking.md", "fifo.md"))
    assert break_even_seconds(shipped_prices()) == DEFAULT_PARK_AFTER_SECONDS
    assert f"by default {DEFAULT_PARK_AFTER_SECONDS:,} s" in parking
    assert f"for {AMENDMENT_LIFETIME_SECONDS // 86_400} days" in parking
    assert f"| `Change.REQUESTED` | {EXIT_REQUESTED} |" in parking
    assert f"Names may have {MAX_ENDPOINT_CHARS} characters before `.fifo`" in fifo
