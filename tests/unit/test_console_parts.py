"""The console's parts by themselves: answers that are shared, changes that are stopped, a ledger's file."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.console import ConsoleSettings
from sqsdelay.console.guard import Access
from sqsdelay.console.messages import LedgerFile
from sqsdelay.console.rendering import troubles
from sqsdelay.console.sampling import MOST_UNANSWERED, Patience, Sample, Sampled
from sqsdelay.console.services import AT_ONCE, Change, Chosen, Services, of_parked
from sqsdelay.console.source import BODY_SHOWN, BrokerStatus, kind_of_body
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError, StoreUnavailable
from sqsdelay.ledger import Event, EventKind, FileLedger, Source
from sqsdelay.stores import open_store
from sqsdelay.testing import ManualClock
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS

NOW_MS = 1_800_000_000_000


class Counting:
    """Answers with how often it was asked; holds its answer back until it may be given."""

    def __init__(self, clock: ManualClock, *, takes_ms: int = 0) -> None:
        self.asked = 0
        self.may = threading.Event()
        self.may.set()
        self.error: Exception | None = None
        self._clock = clock
        self._takes_ms = takes_ms

    def __call__(self) -> int:
        self.asked += 1
        answer = self.asked
        assert self.may.wait(PATIENCE_SECONDS)
        self._clock.advance(self._takes_ms / 1000)
        if self.error is not None:
            raise self.error
        return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", PATIENCE_SECONDS)
    return ManualClock(NOW_MS)


def sampled(ask: Callable[[], int], clock: ManualClock) -> Sampled[int]:
    return Sampled(ask, fresh_seconds=2, clock=clock)


def test_an_answer_is_shared_while_it_is_fresh(clock: ManualClock) -> None:
    """And asked for again afterwards, or once something was changed."""
    ask = Counting(clock)
    sample = sampled(ask, clock)
    assert [sample.get().value for _ in range(3)] == [1, 1, 1]
    clock.advance(2.1)
    assert sample.get().value == 2
    assert sample.get().at_ms == NOW_MS + 2100
    sample.forget()
    assert sample.get().value == 3


@pytest.mark.parametrize(
    ("takes_seconds", "kept_seconds"), [(0, 2), (1, 5), (2, 10), (12, 60), (30, 60)]
)
def test_slow_stores_are_asked_seldom(
    clock: ManualClock, takes_seconds: int, kept_seconds: int
) -> None:
    """Its answer is kept for a multiple of what it took, a minute at most, from the question on."""
    ask = Counting(clock, takes_ms=1000 * takes_seconds)
    sample = sampled(ask, clock)
    sample.get()
    clock.advance(kept_seconds - takes_seconds - 1)
    assert sample.get().value == 1
    clock.advance(1)
    assert sample.get().value == 2


def test_what_an_old_answer_tells() -> None:
    """Nothing of the present once it is older than ten seconds, or than it is asked for."""
    for age, poll, trouble, tells in (
        (10, 2, None, True),
        (11, 2, None, False),
        (60, 60, None, True),
        (61, 60, None, False),
        (1, 2, "gone", False),
    ):
        sample = Sample("here", NOW_MS - age * 1000, trouble, poll_seconds=poll)
        assert sample.tells(NOW_MS) is tells, (age, poll, trouble)
    nothing: Sample[str] = Sample()
    assert not nothing.tells(NOW_MS)


def test_a_failure_keeps_the_last_answer(clock: ManualClock) -> None:
    """With when it was asked for, and what went wrong since; whatever that is."""
    ask = Counting(clock)
    sample = sampled(ask, clock)
    sample.get()
    for error, words in (
        (StoreUnavailable("gone\nfor now"), "gone\\x0afor now"),
        (KeyError("x"), "KeyError: 'x'"),
    ):
        ask.error = error
        clock.advance(3)
        found = sample.get()
        assert (found.value, found.at_ms, found.trouble) == (1, NOW_MS, words)
    ask.error = None
    clock.advance(3)
    assert sample.get().trouble is None


def test_an_answer_that_does_not_come_is_not_asked_for_twice(clock: ManualClock) -> None:
    """The last one is shown meanwhile; one from before a change does not count as fresh."""
    ask = Counting(clock)
    sample = sampled(ask, clock)
    sample.get(0)
    until_known(sample, 1)
    clock.advance(3)
    ask.may.clear()
    for seconds in (0, 5):
        clock.advance(seconds)
        found = sample.get(0)
        assert found.value == 1
        assert found.trouble == f"no answer for {seconds} s; still waiting"
    assert ask.asked == 2
    sample.forget()
    ask.may.set()
    until_known(sample, 2)
    sample.start()
    until_known(sample, 3)


def test_what_failed_keeps_its_words_while_it_is_asked_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page waits for long for a server that is known to be down."""
    monkeypatch.setattr("sqsdelay.console.sampling.TROUBLED_SECONDS", 0)
    ask = Counting(clock)
    ask.error = StoreUnavailable("connection refused")
    sample = sampled(ask, clock)
    first = sample.get()
    clock.advance(3)
    ask.may.clear()
    assert sample.get() == first
    assert first.trouble == "connection refused"
    ask.error = None
    ask.may.set()
    until_known(sample, 2)


def test_what_an_operator_should_mend_is_dated_and_then_forgotten(clock: ManualClock) -> None:
    """A broker that does not answer any more may have been mended meanwhile."""
    settings = ConsoleSettings(endpoints=("orders",), rabbitmq="amqp://guest:guest@127.0.0.1:1/")
    services = Services(settings, Access(), clock)
    found = BrokerStatus(0, 0, [], ["3 messages were due while no queue was bound"])
    services.source(None).queues_sample = Sampled(lambda: found, 2, clock=clock)
    services.source(None).queues_sample.get()
    told = "RabbitMQ, orders: 3 messages were due while no queue was bound"
    for seconds, shown in ((0, [told]), (15, [f"{told} (15 s old)"]), (50, [])):
        clock.advance(seconds)
        assert troubles(services, ask=False) == shown


def until_known(sample: Sampled[int], value: int) -> None:
    """Wait for a thread to have it."""
    over = threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        known = sample.known()
        if known.value == value and known.trouble is None:
            return
        over.wait(0.01)
    raise AssertionError(sample.known())


def test_who_waits_is_let_go_and_the_server_is_not_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many questions wait at a time; the next is refused; an answer frees its place."""
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", 0.01)
    patience, may = Patience("the store", StoreUnavailable), threading.Event()
    for _ in range(MOST_UNANSWERED):
        with pytest.raises(StoreUnavailable, match="the store has not answered for 0 s"):
            patience.ask(lambda: may.wait(PATIENCE_SECONDS))
    with pytest.raises(StoreUnavailable, match="has not answered 8 earlier requests"):
        patience.ask(lambda: True)
    monkeypatch.setattr("sqsdelay.console.sampling.PATIENCE_SECONDS", PATIENCE_SECONDS)
    may.set()
    assert patience.ask(lambda: "now") == "now"
    with pytest.raises(KeyError):
        patience.ask(lambda: dict[str, str]()["x"])


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("", "empty"),
        (' {"a": 1}\n', "JSON"),
        ("{a}", "text"),
        ("[1", "text"),
        ("<a>" + "x" * BODY_SHOWN + "</a>\n", "XML"),
        ("[" + "1," * BODY_SHOWN + "1]", "JSON"),
        ("[" + "1," * BODY_SHOWN, "text"),
        ("\\xff\\x00", "binary"),
    ],
)
def test_what_a_body_looks_like(body: str, kind: str) -> None:
    """A long one is judged by its ends: a list may show a thousand."""
    assert kind_of_body(body) == kind


def test_it_needs_only_its_own_extra() -> None:
    """`make demo` installs neither pika nor psycopg, and an endpoint on SQS needs neither."""
    program = (
        "import sys; sys.modules.update(pika=None, psycopg=None, pyarrow=None);"
        "import sqsdelay.console.server"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)


class Held:
    """A change of nine messages that goes on when it may."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = f"sqlite:///{folder}/store.db"
        kept = [a_message(f"m{n}", 2**41) for n in range(9)]
        with closing(open_store(self.url, endpoint="orders")) as store:
            store.set_up()
            store.store(kept)
        settings = ConsoleSettings(endpoints=("orders",), stores={"orders": self.url})
        self.services = Services(settings, Access())
        source, first, self.may = self.services.source(None), threading.Event(), threading.Event()
        find = source.place().find

        def held(message_id: str) -> StoredMessage | None:
            first.set()
            assert self.may.wait(PATIENCE_SECONDS)
            return find(message_id)

        monkeypatch.setattr(source.place(), "find", held)
        monkeypatch.setattr(source, "latest_ms", lambda: NOW_MS)
        work = of_parked(source, "cancel", [Chosen(each.message_id, None) for each in kept], None)
        self.change = Change("cancel", "orders", None, "me")
        args = ("key", self.change, work)
        self.making = threading.Thread(target=self.services.make, args=args)
        self.making.start()
        assert first.wait(PATIENCE_SECONDS)


def test_a_stopped_console_ends_changes_after_what_they_are_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was changed has an outcome, and the rest was not touched."""
    monkeypatch.setattr("sqsdelay.console.services.STOP_SECONDS", PATIENCE_SECONDS)
    held = Held(tmp_path, monkeypatch)
    stopping = threading.Thread(target=held.services.close)
    stopping.start()
    assert held.services.source(None).stopping.wait(PATIENCE_SECONDS)
    held.may.set()
    for each in (stopping, held.making):
        each.join(PATIENCE_SECONDS)
    assert held.change.counts == {"done": AT_ONCE}
    words = "the console was stopped; messages without an outcome were not touched"
    assert held.change.error == words
    with closing(open_store(held.url, endpoint="orders")) as store:
        assert store.pending_count() == 9 - AT_ONCE


def test_a_console_with_a_change_that_hangs_stops_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for to its end."""
    monkeypatch.setattr("sqsdelay.console.services.STOP_SECONDS", 0.01)
    held = Held(tmp_path, monkeypatch)
    held.services.close()
    assert held.making.is_alive()
    held.may.set()
    held.making.join(PATIENCE_SECONDS)


def event(message_id: str, kind: EventKind, at_ms: int, **more: Any) -> Event:
    given = {"endpoint": "orders", "source": Source.CONSUMER} | more
    return Event(kind=kind, at_ms=at_ms, message_id=message_id, **given)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_a_ledger_is_read_while_it_grows(path: Path) -> None:
    """No file yet is an empty one; a line that is half written, or none, is passed over."""
    ledger = LedgerFile(path)
    assert ledger.tail() == ()
    assert ledger.history("orders", "a").events == ()
    writer = FileLedger(path)
    writer.record([event("a", EventKind.SENT, 1)])
    assert [each.message_id for each in ledger.tail()] == ["a"]
    with path.open("ab") as file:
        file.write(b'no event\n{"event": "sen')
    assert [each.message_id for each in ledger.tail()] == ["a"]
    assert ledger.last_seen_ms("orders") == {Source.CONSUMER: 1}
    with pytest.raises(ConfigurationError, match="cannot be read"):
        LedgerFile(path.parent).tail()


def test_lateness_counts_each_message_once(path: Path) -> None:
    """By who handed it over, not by when its receiver came to it."""
    writer = FileLedger(path)
    for n in range(1, 101):
        writer.record([event(f"m{n}", EventKind.HANDED_OVER, n, late_ms=n)])
    writer.record([event("m1", EventKind.RECEIVED, 200, late_ms=9_999)])
    writer.record([event("x", EventKind.HANDED_OVER, 200, late_ms=5_000, endpoint="others")])
    found = LedgerFile(path).lateness("orders")
    assert list(found.values()) == [100, 200, 50, 99, 100]
    assert LedgerFile(path).lateness("nobody") == {}


def test_only_the_end_of_a_long_file_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first whole line on; a history says that it may have begun earlier."""
    writer = FileLedger(path)
    writer.record([event(f"m{n}", EventKind.HOP, n) for n in range(50)])
    size = path.stat().st_size // 50
    monkeypatch.setattr("sqsdelay.console.messages.TAIL_BYTES", 10 * size)
    monkeypatch.setattr("sqsdelay.console.messages.MOST_SEARCHED_BYTES", 10 * size)
    ledger = LedgerFile(path)
    assert [each.message_id for each in ledger.tail()][-1] == "m49"
    assert 8 <= len(ledger.tail()) <= 10
    assert [each.at_ms for each in ledger.recent(["orders"], 3)] == [49, 48, 47]
    assert not ledger.history("orders", "m0").events
    found = ledger.history("orders", "m49")
    assert (found.hops, found.whole) == (1, False)


def test_the_history_of_a_year_keeps_both_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hops are counted; ids are found whatever is in them, and by SQS's id."""
    monkeypatch.setattr("sqsdelay.console.messages.MOST_EVENTS", 4)
    writer, odd = FileLedger(path), 'é"\\'
    writer.record([event(odd, EventKind.HOP, n) for n in range(9)])
    writer.record([event(odd, EventKind.HANDED_OVER, 9, sqs_message_id="sqs-1")])
    writer.record([event("other", EventKind.HOP, 3)])
    found = LedgerFile(path).history("orders", odd)
    assert [each.at_ms for each in found.events] == [0, 1, 8, 9]
    assert (found.hops, found.left_out, found.whole) == (9, 6, True)
    assert len(LedgerFile(path).history("orders", "sqs-1").events) == 1
