"""How soon the console shows 100,000 parked messages, beside a plain query of the same store.

    python -m benchmarks.console [--messages 100000]

The page is asked for over HTTP from a console that was just started: the first answer opens the store.
"""

from __future__ import annotations

import argparse
import statistics
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from sqsdelay.console.guard import Access
from sqsdelay.console.messages import PAGE
from sqsdelay.console.server import serving
from sqsdelay.console.services import Services
from sqsdelay.console.source import ConsoleSettings
from sqsdelay.stores import StoredMessage, open_store

TIMES = 20
CHUNK = 5_000


def filled(url: str, messages: int) -> None:
    """A store with so many messages of 1 KiB, due over a year."""
    now_ms = time.time_ns() // 1_000_000
    with closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
        for start in range(0, messages, CHUNK):
            store.store(
                [
                    StoredMessage(
                        message_id=f"order-{n:07}",
                        destination="orders",
                        due_ms=now_ms + 86_400_000 + n * 315_000,
                        body=b"x" * 1024,
                    )
                    for n in range(start, min(start + CHUNK, messages))
                ]
            )


def timed(ask: Callable[[], object]) -> float:
    """Seconds that it took."""
    began = time.perf_counter()
    ask()
    return time.perf_counter() - began


def query(url: str) -> None:
    """What the page needs, without the page."""
    with closing(open_store(url, endpoint="orders")) as store:
        store.pending_count()
        assert len(store.pending(PAGE)) == PAGE


def fetched(url: str) -> None:
    """The page."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read().count(b"/message?endpoint=orders") == PAGE


def main() -> None:
    """Print both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    messages: int = parser.parse_args().messages
    with TemporaryDirectory(prefix="sqsdelay-console-") as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        filled(url, messages)
        plain = [timed(lambda: query(url)) for _ in range(TIMES)]
        settings = ConsoleSettings(endpoints=("orders",), stores={"orders": url})
        with serving(Services(settings, Access()), port=0) as address:
            page = f"{address}messages"
            first = timed(lambda: fetched(page))
            later = [timed(lambda: fetched(page)) for _ in range(TIMES)]
    ask, show = statistics.median(plain), statistics.median(later)
    print(f"{messages:,} parked messages of 1 KiB, SQLite")
    print(
        f"a plain query of the count and the first {PAGE}: {ask * 1000:.1f} ms (median of {TIMES})"
    )
    print(
        f"the console's first page: {first * 1000:.0f} ms the first time, {show * 1000:.1f} ms then"
    )
    print(f"ratio of page to query: {show / ask:.1f}; first page within a second: {first < 1}")


if __name__ == "__main__":
    main()
