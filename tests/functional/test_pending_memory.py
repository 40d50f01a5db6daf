"""Listing what is pending takes the memory of a page, however many messages wait."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sqsdelay.cli import console
from sqsdelay.cli.waiting import pending
from sqsdelay.parking.parking import Schedule
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from tests.messages import a_message

COUNT = 1_500
BODY = bytes(8192)
PAGES_BYTES = 5_000_000
"""A page of 100 messages of 8 KiB, and a table of 1,000 rows as rich lays it out, take less. All of
them take more than twice as much."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(SqliteStore(tmp_path / "store.db", endpoint="orders")) as store:
        store.set_up()
        for start in range(0, COUNT, 500):
            store.store([a_message(f"m{n:032}", n, body=BODY) for n in range(start, start + 500)])
    return tmp_path / "store.db"


def most_allocated(work: Callable[[], object]) -> int:
    """Bytes that Python had allocated at once for the work, on top of what it had before."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "table"])
def test_the_command(path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """300,000 messages once took 234 MB, all of them in a list before the first was printed."""
    with Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr(console.out, "_file", nowhere)

        def listed(limit: int) -> None:
            pending("orders", f"sqlite:///{path}", limit=limit, as_json=as_json)

        listed(10)  # imports what is needed
        assert most_allocated(lambda: listed(COUNT)) < PAGES_BYTES


def test_the_schedule(path: Path) -> None:
    """What `DelaySender.pending` reads from; the bound tells a page from all at once."""
    with closing(SqliteStore(path, endpoint="orders")) as store:
        schedule = Schedule(store, endpoint="orders")
        assert most_allocated(lambda: sum(1 for _ in schedule.pending())) < PAGES_BYTES
        assert most_allocated(lambda: list(schedule.pending())) > 2 * PAGES_BYTES
