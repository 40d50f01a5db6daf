"""docs/ledger.md does what it says, on a local AWS; the schema in docs/fields.md is the code's."""

from __future__ import annotations

import re
import shlex
import signal
import uuid
from collections import Counter
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from lambdas.settings import PowertoolsLedger
from sqsdelay import DelaySender
from sqsdelay.cdk import function_names
from sqsdelay.core.delay import SystemClock
from sqsdelay.core.message import Route
from sqsdelay.ledger.events import LEDGER_VERSION, Event, EventKind, Source, from_json, to_json
from sqsdelay.stores import open_store
from sqsdelay.testing.local_aws import LocalAws
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint
from tests.services.processes import run, running

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "ledger.md").read_text()
SCHEMA = (DOCS / "fields.md").read_text().partition("\n## The report's figures")[0]
HOP = "1"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE + SCHEMA, re.DOTALL)


def read(path: Path) -> list[Event]:
    return [from_json(line) for line in path.read_bytes().splitlines()]


def commands(endpoint: str, folder: Path) -> dict[str, list[str]]:
    """The guide's commands by their names, on another endpoint and in another directory."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    given = [shlex.split(line)[1:] for line in lines if line.startswith("sqsdelay ")]
    (create,) = re.findall(r"`sqsdelay (store create .*?)`", GUIDE)
    given.append(shlex.split(create))
    placed = {"orders": endpoint, "orders.jsonl": str(folder / "orders.jsonl")}
    placed["sqlite:///orders.db"] = f"sqlite:///{folder}/orders.db"
    return {words[0]: [placed.get(word, word) for word in words] for words in given}


def test_the_commands(local_aws: LocalAws, tmp_path: Path) -> None:
    """Six commands write into one file, from which each message's story can be told."""
    name = f"ledger-{uuid.uuid4().hex[:8]}"
    env = local_aws.environment()
    create_endpoint(local_aws.client("sqs"), name, hop_seconds=int(HOP))
    command = commands(name, tmp_path)

    def ok(words: list[str], *options: str) -> None:
        done = run(*words, *options, env=env)
        assert done.returncode == 0, done.stderr

    ok(command["store"])
    now_ms = SystemClock().now_ms()  # a local AWS has the machine's
    due = {"order-8": 3_600_000, "order-9": 3_600_000, "order-10": 1_500}
    with closing(open_store(f"sqlite:///{tmp_path}/orders.db", endpoint=name)) as store:
        store.store([a_message(i, now_ms + ms, to=name) for i, ms in due.items()])
    ok(command["cancel"])
    ok(command["reschedule"])
    workers = (
        running(*command["consume"], "--hop", HOP, "--wait", "1", env=env),
        running(*command["dispatch"], env=env),
    )
    with workers[0] as consumer, workers[1] as releasing:
        sending = ["6s" if word == "20m" else word for word in command["send"]]
        ok(sending, "--hop", HOP)
        ok(command["receive"], "--count", "2", "--idle", str(PATIENCE_SECONDS))
        for worker in (consumer, releasing):
            worker.process.send_signal(signal.SIGTERM)
            assert worker.end() == 0
    told = [(e.message_id, e.source, e.kind) for e in read(tmp_path / "orders.jsonl")]
    hops = told.count(("order-7", Source.CONSUMER, EventKind.HOP))
    assert hops <= 6  # fewer on a busy machine, where the consumer sees it late
    assert Counter(told) == Counter(
        {
            ("order-7", Source.SENDER, EventKind.SENT): 1,
            ("order-7", Source.CONSUMER, EventKind.HOP): hops,
            ("order-7", Source.CONSUMER, EventKind.HANDED_OVER): 1,
            ("order-7", Source.RECEIVER, EventKind.RECEIVED): 1,
            ("order-8", Source.SENDER, EventKind.CANCELLED): 1,
            ("order-9", Source.SENDER, EventKind.RESCHEDULED): 1,
            ("order-10", Source.DISPATCHER, EventKind.RELEASED): 1,
            ("order-10", Source.RECEIVER, EventKind.RECEIVED): 1,
        }
    )
    late = [e.late_ms for e in read(tmp_path / "orders.jsonl") if e.kind is EventKind.RECEIVED]
    assert all(ms is not None and ms >= 0 for ms in late)


@pytest.mark.parametrize("command", ["send", "consume", "receive", "cancel", "dispatch", "demo"])
def test_a_file_that_cannot_be_written_is_one_line(command: str, tmp_path: Path) -> None:
    """Before anything is sent or received."""
    given = commands("orders", tmp_path)[command]
    words = ["/proc/no-file" if word.endswith(".jsonl") else word for word in given]
    done = run(*words, env={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert done.returncode == 1
    assert "ledger file" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_python(aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sender, receiver and logger: what they record is there."""
    monkeypatch.chdir(tmp_path)
    name = f"ledger-{uuid.uuid4().hex[:8]}"
    create_endpoint(aws_here.client("sqs"), name)
    DelaySender().send(name, "there already", message_id="early-bird")
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block.replace('"orders"', repr(name)), names)
    for handler in names["log"].handlers:
        handler.close()
    names["log"].handlers.clear()
    sent, received = read(tmp_path / "orders.jsonl")
    assert (sent.kind, sent.route) == (EventKind.SENT, Route.DELAY_QUEUE)
    assert (received.kind, received.message_id) == (EventKind.RECEIVED, "early-bird")
    (logged,) = read(tmp_path / "orders.log")
    assert (logged.route, logged.timer_seconds) == (Route.DIRECT, 60)


def test_an_exported_log_is_a_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    """What the guide's query takes from CloudWatch's answer is read line by line."""
    (example,) = map(from_json, blocks("json"))
    PowertoolsLedger(f"orders-{uuid.uuid4().hex}").record([example])
    logged = capsys.readouterr().out
    query = re.findall(r"aws logs .*--query '(.*?)'", GUIDE)[0]
    with mock_aws():
        logs = boto3.client("logs")
        place = {"logGroupName": "orders", "logStreamName": "1"}
        logs.create_log_group(logGroupName="orders")
        logs.create_log_stream(**place)
        written = [{"timestamp": SystemClock().now_ms(), "message": logged}]
        logs.put_log_events(**place, logEvents=written)
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName="orders")
        exported = "".join("\t".join(row) + "\n" for row in pages.search(query))
    lines = [line for line in exported.splitlines() if line]
    assert [from_json(line) for line in lines] == [example]
    assert "'{ $.ledger.v = " + str(LEDGER_VERSION) + " }'" in GUIDE


def test_the_tables_are_the_codes() -> None:
    """Every field, kind of event, source and route is explained, and the example is a line."""
    known = {"v", "event"} | {field.name for field in fields(Event)} - {"kind"}
    told = set(re.findall(r"^\| `([a-z_-]+)` \|", SCHEMA, re.MULTILINE))
    assert told == known | set(EventKind)
    (row,) = re.findall(r"^\| `source` .*$", SCHEMA, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", row)) == {"source", *Source}
    (row,) = re.findall(r"^\| `route` .*$", SCHEMA, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", row)) == {"route", "sent", *Route}
    (example,) = blocks("json")
    assert to_json(from_json(example)) == example.strip()
    assert f"## The schema, version {LEDGER_VERSION}" in SCHEMA
    variables = {function_names.LEDGER_VARIABLE, function_names.LEDGER_VARIABLE}
    assert [f"`{variable}=true`" in GUIDE for variable in variables] == [True]
