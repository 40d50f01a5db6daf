"""Ledgers in files and logs: whole lines, whoever else writes, and whatever becomes of the disk."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import resource
import stat
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sqsdelay import FileLedger, LoggerLedger
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.dispatching import ExactlyOnce
from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.errors import ConfigurationError, MalformedEvent, StoreUnavailable
from sqsdelay.ledger.events import Event, EventKind, Source, from_json, record_safely, to_json
from sqsdelay.ports.stores import Claim
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing import InMemoryLedger
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS, ended

WRITERS, BATCHES, BATCH = 4, 250, 10


def event(message_id: str) -> Event:
    return Event(
        kind=EventKind.HOP,
        at_ms=1_800_000_000_000,
        endpoint="orders",
        message_id=message_id,
        source=Source.CONSUMER,
    )


def read(path: Path) -> list[Event]:
    return [from_json(line) for line in path.read_bytes().splitlines()]


def append_batches(path: Path, writer: int) -> None:
    """What each of many processes, or threads, does."""
    ledger = FileLedger(path)
    for batch in range(BATCHES):
        reason = "x" * (batch % 300)
        ledger.record(
            [replace(event(f"{writer}-{batch}-{n}"), reason=reason or None) for n in range(BATCH)]
        )


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_many_writers_share_a_file(tmp_path: Path, kind: str) -> None:
    """Every line is whole, none is missing, and each batch stands together in its order."""
    path = tmp_path / "ledger.jsonl"
    if kind == "processes":
        spawn = multiprocessing.get_context("spawn")
        writers = [spawn.Process(target=append_batches, args=(path, w)) for w in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(PATIENCE_SECONDS)
        assert [writer.exitcode for writer in writers] == [0] * WRITERS
    else:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(append_batches, [path] * WRITERS, range(WRITERS)))
    ids = [each.message_id for each in read(path)]
    assert len(ids) == WRITERS * BATCHES * BATCH
    batches = [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]
    starts = {batch[0].rsplit("-", 1)[0] for batch in batches}
    assert len(starts) == WRITERS * BATCHES
    for batch in batches:
        assert batch == [f"{batch[0].rsplit('-', 1)[0]}-{n}" for n in range(BATCH)]


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    """As log rotation does it, without a word to the worker."""
    path = tmp_path / "ledger.jsonl"
    ledger = FileLedger(path)
    ledger.record([event("a")])
    path.rename(tmp_path / "ledger.1")
    ledger.record([event("b")])
    assert [e.message_id for e in read(tmp_path / "ledger.1")] == ["a"]
    assert [e.message_id for e in read(path)] == ["b"]


def test_a_file_ledger_goes_to_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pickled, to the same file, wherever that process works."""
    monkeypatch.chdir(tmp_path)
    ledger = FileLedger("ledger.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    pickle.loads(pickle.dumps(ledger)).record([event("a")])
    assert [e.message_id for e in read(tmp_path / "ledger.jsonl")] == ["a"]


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    """A worker that starts again appends."""
    path = tmp_path / "ledger.jsonl"
    for message_id in ("a", "b"):
        FileLedger(path).record([event(message_id)])
    assert [e.message_id for e in read(path)] == ["a", "b"]


@pytest.mark.parametrize("name", ["missing/ledger.jsonl", "."])
def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path, name: str) -> None:
    """Not at the first message, in a warning nobody reads."""
    with pytest.raises(ConfigurationError, match="name a file that can be written"):
        FileLedger(tmp_path / name)


def test_a_full_disk_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A real one: the kernel's /dev/full."""
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    record_safely(FileLedger("/dev/full"), [event("a")])
    assert "No space left on device" in caplog.text


TORN = """
import resource, signal, sys
from pathlib import Path
from tests.functional.test_ledgers import event
from sqsdelay import FileLedger
from sqsdelay.ledger.events import to_json
path, line = Path(sys.argv[1]), len(to_json(event("0"))) + 1
ledger = FileLedger(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (2 * line + 7, resource.RLIM_INFINITY))
try:
    ledger.record([event(str(n)) for n in range(5)])
except OSError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.record([event("8"), event("9")])
"""


def test_a_line_that_was_cut_off_spoils_only_itself(tmp_path: Path) -> None:
    """The disk was full in the middle of a batch: what follows begins on a line of its own."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    path = tmp_path / "ledger.jsonl"
    done = ended([sys.executable, "-c", TORN, str(path)], cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "is the disk full?" in done.stdout
    lines = path.read_text().splitlines()
    assert len(lines) == 5
    assert [from_json(lines[n]).message_id for n in (0, 1, 3, 4)] == ["0", "1", "8", "9"]
    with pytest.raises(MalformedEvent):
        from_json(lines[2])


def test_a_logger_gets_a_line_for_each_event(caplog: pytest.LogCaptureFixture) -> None:
    """Just the JSON; percent signs in it are no formats."""
    odd = replace(event("100%s"), reason="50 % off")
    with caplog.at_level(logging.INFO, "orders.ledger"):
        LoggerLedger(logging.getLogger("orders.ledger")).record([event("a"), odd])
    assert [from_json(record.getMessage()) for record in caplog.records] == [event("a"), odd]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_logger_that_is_off_makes_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it cost any JSON."""
    monkeypatch.setattr("sqsdelay.ledger.files.to_json", lambda _: 1 / 0)
    logger = logging.getLogger("orders.ledger.off")
    logger.setLevel(logging.WARNING)
    LoggerLedger(logger).record([event("a")])
    LoggerLedger(logger, level=logging.DEBUG).record([event("a")])


class Undone(SqliteStore):
    """A store whose commit fails, once."""

    fails = True

    @contextmanager
    def claim(self, limit: int, **given: Any) -> Iterator[Claim]:
        with super().claim(limit, **given) as claim:
            yield claim
            if self.fails:
                self.fails = False
                raise StoreUnavailable("the disk failed")


def test_exactly_once_effects_are_recorded_when_they_are_committed(tmp_path: Path) -> None:
    """What a transaction undid did not happen."""
    ledger = InMemoryLedger()
    with closing(Undone(tmp_path / "store.db", endpoint="orders")) as store:
        store.set_up()
        store.store([a_message(name, n) for n, name in enumerate(("good", "bad"))])

        def deliver(transaction: Any, messages: Sequence[StoredMessage]) -> None:
            if any(message.message_id == "bad" for message in messages):
                raise ValueError("odd")

        def reject(transaction: Any, message: StoredMessage, reason: str) -> None:
            pass

        destination = ExactlyOnce(deliver=deliver, reject=reject)
        dispatcher = Dispatcher(store, destination, ledger=ledger)
        dispatcher.start()
        with pytest.raises(StoreUnavailable):
            dispatcher.dispatch()
        assert ledger.events == []
        dispatcher.dispatch()
    told = {e.message_id: (e.kind, e.reason) for e in ledger.events}
    assert told == {
        "good": (EventKind.RELEASED, None),
        "bad": (EventKind.REJECTED, "ValueError: ValueError: odd"),
    }
    assert len(ledger.events) == 2
    assert all(from_json(to_json(e)) == e for e in ledger.events)
