"""PostgreSQL killed (SIGKILL for all of it) under dispatchers: nothing is lost, and what may be sent
twice is counted. docs/stores.md promises no more than this."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress

import pytest

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching.dispatcher import Dispatcher, DispatchSettings
from sqsdelay.errors import CriticalError, StoreError, StoreUnavailable
from sqsdelay.ports.queues import Failure
from sqsdelay.stores.postgres.postgres_store import PostgresStore
from sqsdelay.testing import InMemoryOutbox
from tests.acceptance.dispatcher_process import dispatching, message
from tests.patience import wait_for
from tests.services.postgres import PostgresServer, postgres_server

BATCH = 50
SETTINGS = DispatchSettings(batch_size=BATCH, poll_seconds=0.2, fetch_breaker_seconds=120)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(autouse=True)
def quiet_pool() -> Iterator[None]:
    """psycopg_pool logs each failed reconnection; here they are the point."""
    logger = logging.getLogger("psycopg.pool")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


class Destination:
    """Takes everything, slowly; may do something in the midst of the first send."""

    max_ahead_seconds = 0

    def __init__(self, *, during_first: object = None, seconds: float = 0) -> None:
        self.sent: list[str] = []
        self.begun: list[bool] = []
        self._during_first = during_first
        self._seconds = seconds

    def check(self) -> None:
        """Always ready. A dispatcher's start ends with it."""
        self.begun.append(True)

    def now_ms(self) -> int:
        return SystemClock().now_ms()

    def send(self, messages: Sequence[StoredMessage]) -> list[Failure | None]:
        self.sent.extend(message.message_id for message in messages)
        during, self._during_first = self._during_first, None
        if messages and callable(during):
            during()
        time.sleep(self._seconds)
        return [None] * len(messages)

    def reject(self, messages: Sequence[tuple[StoredMessage, str]]) -> list[Failure | None]:
        raise AssertionError("nothing fails here")


def fill(store: PostgresStore, count: int) -> set[str]:
    names = [f"m{n:05}" for n in range(count)]
    store.set_up()
    for start in range(0, count, 1000):
        store.store([message(name) for name in names[start : start + 1000]])
    return set(names)


def dispatch_until_done(dispatcher: Dispatcher) -> None:
    def is_empty() -> bool:
        with suppress(StoreError):
            return not dispatcher.dispatch().claimed
        return False

    wait_for(is_empty)


@pytest.mark.parametrize(("another", "repeated"), [(False, 0), (True, BATCH)])
def test_killed_between_a_send_and_its_removal(
    server: PostgresServer, another: bool, repeated: int
) -> None:
    """The removal is undone. Who sent remembers it and only removes; another one sends again."""
    outbox = Destination(during_first=server.kill)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(closing(PostgresStore(server.conninfo, endpoint="orders")))
            for _ in range(2)
        ]
        names = fill(stores[0], BATCH)
        first, second = (Dispatcher(store, outbox, settings=SETTINGS) for store in stores)
        with pytest.raises(StoreUnavailable):
            first.dispatch()
        server.start()
        dispatch_until_done(second if another else first)
        assert stores[1].pending_count() == 0
    assert set(outbox.sent) == names
    assert len(outbox.sent) - len(names) == repeated


def test_killed_under_load(server: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Four dispatchers, four kills: none lost; at most the batch that each had in hand is repeated."""
    outbox, chance = Destination(seconds=0.02), random.Random(1)
    kills, dispatchers = 4, 4
    with ExitStack() as stack:
        stores = [
            stack.enter_context(closing(PostgresStore(server.conninfo, endpoint="orders")))
            for _ in range(dispatchers + 1)
        ]
        names = fill(stores[-1], 10_000)
        with dispatching(
            *(Dispatcher(store, outbox, settings=SETTINGS) for store in stores[:dispatchers])
        ):
            wait_for(lambda: len(outbox.begun) == dispatchers)
            made = 0
            while made < kills and len(outbox.sent) < len(names):
                time.sleep(0.2 + 0.2 * chance.random())
                server.kill()
                made += 1
                server.start()
            wait_for(lambda: empty(stores[-1]))
    repeated = sum(count - 1 for count in Counter(outbox.sent).values())
    with capsys.disabled():
        print(  # noqa: T201
            f"\nPostgreSQL: {len(names)} messages, {made} kills of the database, {repeated} sent again"
        )
    assert made >= 2
    assert set(outbox.sent) == names
    assert repeated <= made * dispatchers * BATCH


def empty(store: PostgresStore) -> bool:
    with suppress(StoreUnavailable):
        return store.pending_count() == 0
    return False


def test_a_store_that_goes_away_and_returns(server: PostgresServer) -> None:
    """The server crashes and comes back: the dispatcher goes on by itself, nothing lost or doubled."""
    outbox = InMemoryOutbox(SystemClock())
    with closing(PostgresStore(server.conninfo, endpoint="orders")) as store:
        store.set_up()
        store.store([message("before"), message("during", 1500)])
        with dispatching(Dispatcher(store, outbox)):
            wait_for(lambda: len(outbox.sent) == 1)
            server.stop("immediate")
            with pytest.raises(StoreUnavailable):
                store.store([message("refused")])
            time.sleep(1.5)
            server.start()
            wait_for(lambda: len(outbox.sent) == 2)

            def stored() -> bool:
                with suppress(StoreUnavailable):
                    return bool(store.store([message("after")]))
                return False

            wait_for(stored)
            wait_for(lambda: len(outbox.sent) == 3)
    assert [m.message_id for m in outbox.sent] == ["before", "during", "after"]


def test_a_store_that_stays_away_is_critical(server: PostgresServer) -> None:
    """The fetch breaker ends the dispatcher with a message that says how long it tried."""
    with closing(PostgresStore(server.conninfo, endpoint="orders")) as store:
        store.set_up()
        settings = DispatchSettings(fetch_breaker_seconds=1)
        dispatcher = Dispatcher(store, InMemoryOutbox(SystemClock()), settings=settings)
        crash = threading.Timer(0.3, server.stop, ["immediate"])
        crash.start()
        with pytest.raises(CriticalError, match=r"fetch circuit breaker: failing for \d+ s"):
            dispatcher.run(threading.Event())
        crash.join()
        server.start()
