"""``sqsdelay store`` and ``sqsdelay dispatch``, as processes on a SQLite file and a local AWS."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.cli.waiting import EXIT_REQUESTED
from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS, ended
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.processes import Process, environment, run, started


class CommandLine:
    """The command, with a store of its own and the local AWS."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment | {"SQSDELAY_STORE": f"sqlite:///{folder}/store.db"}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, env=self.environment)

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def started(self, *arguments: str) -> AbstractContextManager[Process]:
        return started(*arguments, env=self.environment)


@pytest.fixture
def cli(tmp_path: Path, local_aws: LocalAws) -> CommandLine:
    return CommandLine(tmp_path, local_aws.environment())


def listed(cli: CommandLine, *arguments: str) -> list[Any]:
    output = cli.ok("pending", "orders", "--json", *arguments)
    return [json.loads(line) for line in output.splitlines()]


def test_a_stored_message_is_listed_moved_and_cancelled(cli: CommandLine) -> None:
    """The way of a message that is not wanted after all."""
    cli.ok("store", "create", "orders")
    due = "2035-01-31T09:00:00.000+00:00"
    send = f"send orders --store-only --body hi --due-at {due} --message-id a".split()
    for _ in range(2):
        assert cli.ok(*send) == f"a  store  due {due}\n"
    table = cli.ok("pending", "orders")
    assert "1 of 1 pending" in table
    assert due in table
    moved = cli.ok("reschedule", "orders", "a", "--due-at", "2036-01-31T09:00:00Z")
    assert moved == "a  moved to 2036-01-31T09:00:00.000+00:00\n"
    far = cli.run("reschedule", "orders", "a", "--due-at", "2100-01-31T09:00:00Z")
    assert (far.returncode, "--max-delay" in far.stderr) == (2, True)
    (message,) = listed(cli)
    assert message == {
        "message_id": "a", "destination": "orders", "due": "2036-01-31T09:00:00.000+00:00", "bytes": 2,
        "failures": 0,
    }  # fmt: skip
    assert cli.ok("cancel", "orders", "a") == "a  cancelled\n"
    for change in (["cancel", "orders", "a"], ["reschedule", "orders", "a", "--delay", "1h"]):
        late = cli.run(*change)
        assert (late.returncode, "not in the store" in late.stdout) == (EXIT_REQUESTED, True)
    assert listed(cli) == []


def test_send_parks_what_is_due_far_ahead(cli: CommandLine, local_aws: LocalAws) -> None:
    """With a store, a long delay waits there, a short one in the queue; a mistyped file is refused."""
    name = created(cli, local_aws)
    lines = [{"body": b, "delay": delay} for b, delay in (("a", "30d"), ("b", "2h"), ("c", 60))]
    file = cli.folder / "messages.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = ["--store", cli.environment["SQSDELAY_STORE"]]
    sent = cli.ok("send", name, "--file", str(file), "--json", *store)
    routes = [json.loads(line)["route"] for line in sent.splitlines()]
    assert routes == ["store", "delay-queue", "direct"]
    near = ["send", name, "--body", "d", "--delay", "2h"]
    assert "  delay-queue  " in cli.ok(*near)
    assert "  store  " in cli.ok(*near, "--park-after", "3600", *store)
    waiting = [json.loads(line) for line in cli.ok("pending", name, "--json").splitlines()]
    assert len(waiting) == 2
    typed = ["send", name, "--body", "e", "--delay", "30d", "--store", "sqlite:///typo.db"]
    refused = cli.run(*typed)
    assert (refused.returncode, "typo.db" in refused.stderr) == (1, True)


def test_a_file_of_messages(cli: CommandLine) -> None:
    """Good lines are stored, bad ones named; the exit code tells."""
    cli.ok("store", "create", "orders")
    lines = [{"body": f"b{n}", "delay": f"{n + 1}h", "message_id": f"m{n}"} for n in range(1100)]
    file = cli.folder / "messages.jsonl"
    bad = '{"body": "x", "delay": "-1h"}\n'
    file.write_text(bad + "".join(json.dumps(line) + "\n" for line in lines))
    done = cli.run("send", "orders", "--store-only", "--file", str(file), "--json")
    assert done.returncode == 1
    assert "line 1:" in done.stderr
    assert "1100 sent, 1 not sent" in done.stderr
    routes = [json.loads(line)["route"] for line in done.stdout.splitlines()]
    assert routes == [None, *["store"] * 1100]
    found = [message["message_id"] for message in listed(cli, "--limit", "1050")]
    assert found == [f"m{n}" for n in range(1050)]


def test_pages_within_a_time(cli: CommandLine) -> None:
    """Each page ends with the cursor of the next, on stderr; an id may hold anything a shell knows."""
    cli.ok("store", "create", "orders")
    ids = ["a;b", "c'$(x)", "d", "e"]
    for day, message_id in enumerate(ids, start=1):
        due = f"2035-01-{day:02}T00:00:00Z"
        send = f"send orders --store-only --body=x --due-at {due} --message-id".split()
        cli.ok(*send, message_id)

    def page(*arguments: str) -> tuple[list[str], list[str]]:
        done = cli.run("pending", "orders", *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == "" or done.stderr.startswith("more: --after ")
        named = [json.loads(line)["message_id"] for line in done.stdout.splitlines()]
        return named, shlex.split(done.stderr)[1:]

    listed: list[str] = []
    cursor: list[str] = []
    for _ in ids:
        found, cursor = page("--json", "--limit", "1", *cursor)
        listed += found
    assert (listed, cursor) == (ids, [])
    within = ["--due-from", "2035-01-02T00:00:00Z", "--due-before", "2035-01-04T00:00:00Z"]
    assert page("--json", *within) == (ids[1:3], [])
    shown = cli.run("pending", "orders", "--limit", "2", *within[:2])
    assert "2 of 4 pending" in shown.stdout
    assert shown.stderr == "more: --after 2051395200000:d\n"
    for option, value, told in (
        ("--after", "yesterday", "is not a cursor"),
        ("--due-from", "2035-01-02", "has no time zone"),
        ("--due-before", "2035-01-31", "has no time zone"),
    ):
        refused = cli.run("pending", "orders", option, value)
        assert (refused.returncode, "--due-at" in refused.stderr) == (2, False)
        assert told in refused.stderr
        assert option in refused.stderr


def test_errors_are_one_line(cli: CommandLine) -> None:
    """What is wrong, and what to do; no traceback."""
    (cli.folder / "store.db").touch()
    unused = f"sqlite:///{cli.folder}/typo.db"
    for code, arguments, told in (
        (1, ["pending", "orders", "--store", unused], f"store create orders --store {unused}"),
        (
            1,
            ["--region", "eu-west-1", "dispatch", "orders", "--store", unused],
            f"sqsdelay --region eu-west-1 store create orders --store {unused}",
        ),
        (2, ["pending", "orders", "--store", "mysql://x"], "give sqlite:///FILE"),
        (2, ["send", "orders", "--store-only", "--body", "x", "--delay", "1y"], "is not valid"),
        (1, ["pending", "orders"], "run sqsdelay store create orders --store sqlite:///"),
        (2, ["dispatch", "orders", "--release-ahead", "901"], "timers allow 0 to 900"),
        (1, ["dispatch", "orders-" + uuid.uuid4().hex], "does not exist"),
    ):
        done = cli.run(*arguments)
        assert done.returncode == code, arguments
        assert told in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) <= 2
    assert not (cli.folder / "typo.db").exists()


def created(cli: CommandLine, aws: LocalAws) -> str:
    """The name of an endpoint with a store."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    create_endpoint(aws.client("sqs"), name)
    cli.ok("store", "create", name)
    return name


def test_two_dozen_processes_cancel_at_once_in_s3(cli: CommandLine) -> None:
    """Messages of one object, and amendments of one shard's neighbours: none is told to try again."""
    bucket = f"s3://{uuid.uuid4()}"
    cli.environment["SQSDELAY_STORE"] = bucket
    cli.ok("store", "create", "orders")
    lines = [json.dumps({"body": "x", "delay": "30d"}) for _ in range(24)]
    (cli.folder / "messages.jsonl").write_text("\n".join(lines))
    file = str(cli.folder / "messages.jsonl")
    cli.ok("send", "orders", "--store", bucket, "--store-only", "--file", file)
    ids = [each["message_id"] for each in listed(cli)]
    with ThreadPoolExecutor(24) as pool:
        done = list(pool.map(lambda each: cli.run("cancel", "orders", each), ids))
    assert [each.stderr for each in done if each.returncode] == []
    assert (len(ids), listed(cli)) == (24, [])


def test_dispatch_delivers_when_due(cli: CommandLine, local_aws: LocalAws) -> None:
    """Stored by one process, released by another with a message timer, received, not early."""
    client, name = local_aws.client("sqs"), created(cli, local_aws)
    send = f"send {name} --store-only --body hi --delay 3 --message-id m --json".split()
    before = time.time()
    with cli.started("dispatch", name, "--json") as process:
        due = datetime.fromisoformat(json.loads(cli.ok(*send))["due"]).timestamp()
        assert due >= before + 3
        assert process.stdout is not None
        released = json.loads(process.stdout.readline())
        assert (released["message_id"], released["status"]) == ("m", "released")
        assert released["late_ms"] >= 0  # how late it is, is the machine's
        messages: list[Any] = []
        while not messages and time.time() < due + PATIENCE_SECONDS:
            messages = in_queue(client, name, wait=5)
        arrived = time.time()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert "stopped; 1 released" in errors
    (message,) = messages
    assert message["Body"] == "hi"
    assert message["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"] == "m"
    # The local AWS's clock is this machine's.
    assert arrived >= due


def test_a_lasting_outage_has_its_own_exit_code(cli: CommandLine, local_aws: LocalAws) -> None:
    """75, so that a supervisor restarts it; the message waits on."""
    name = created(cli, local_aws)
    with cli.started("dispatch", name, "--fetch-breaker", "0.5") as process:
        assert process.stderr is not None
        assert "dispatching" in process.stderr.readline()
        (cli.folder / "store.db").write_bytes(b"no database any more" * 100)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 75, errors
    assert "fetch circuit breaker: failing for" in errors


def test_an_uncounted_failure_has_its_own_breaker(cli: CommandLine, local_aws: LocalAws) -> None:
    """A message for a queue that is not there, and a table that takes no count: 75 within a second."""
    name = created(cli, local_aws)
    with closing(sqlite3.connect(cli.folder / "store.db")) as connection:
        connection.execute(
            f'INSERT INTO "{name}.delayed" (message_id, destination, due_ms, body, headers) '
            "VALUES ('m', 'nowhere', 1, x'78', '{}')"
        )
        connection.execute(
            f'CREATE TRIGGER no_counts BEFORE UPDATE ON "{name}.delayed" '
            "WHEN new.failures > old.failures BEGIN SELECT RAISE(ABORT, 'no counts'); END"
        )
        connection.commit()
    done = cli.run("dispatch", name, "--retries", "5", "--recovery-failures", "2")
    assert done.returncode == 75, done.stderr
    assert "recovery circuit breaker: 3 failures in a second (limit 2)" in done.stderr


def test_a_missing_queue_holds_up_no_other(cli: CommandLine, local_aws: LocalAws) -> None:
    """Thirty messages for a queue that is not there, in front of those for five that are."""
    client, name = local_aws.client("sqs"), created(cli, local_aws)
    others = [f"{name}-{n}" for n in range(5)]
    for other in others:
        client.create_queue(QueueName=other)
    rows = [(f"lost-{n}", f"{name}-gone", n) for n in range(30)]
    rows += [(f"{other}-{n}", other, 100 + n) for other in others for n in range(4)]
    with closing(sqlite3.connect(cli.folder / "store.db")) as connection:
        connection.executemany(
            f'INSERT INTO "{name}.delayed" (message_id, destination, due_ms, body, headers) '
            "VALUES (?, ?, ?, x'78', '{}')",
            rows,
        )
        connection.commit()
    fates: Counter[str] = Counter()
    with cli.started("dispatch", name, "--json", "--batch", "10", "--retries", "3") as process:
        assert process.stdout is not None
        while fates["released"] < 20:
            fates[json.loads(process.stdout.readline())["status"]] += 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
    for other in others:
        url = client.get_queue_url(QueueName=other)["QueueUrl"]
        counted = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert counted["ApproximateNumberOfMessages"] == "4"
    assert fates["rejected"] == 0


def test_what_its_destination_would_refuse_is_not_stored(
    cli: CommandLine, local_aws: LocalAws, tmp_path: Path
) -> None:
    """Said now, and not months later by an error queue; what may not be asked is stored."""
    name = f"small-{uuid.uuid4().hex[:8]}"
    local_aws.client("sqs").create_queue(QueueName=name, Attributes={"MaximumMessageSize": "2048"})
    cli.ok("store", "create", name)
    late = ("--due-at", "2040-01-31T09:00:00Z")
    refused = cli.run("send", name, "--store-only", "--body", "x" * 2049, *late)
    assert refused.returncode == 2
    assert f"queue {name}, which takes 2048" in " ".join(refused.stderr.split())
    cli.ok("send", name, "--store-only", "--body", "x" * 2048, *late)
    lines = tmp_path / "messages.jsonl"
    lines.write_text("".join(json.dumps({"body": "x" * size}) + "\n" for size in (2048, 2049)))
    mixed = cli.run("send", name, "--store-only", "--file", str(lines), *late)
    assert (mixed.returncode, "1 sent, 1 not sent" in mixed.stderr) == (1, True)
    cli.ok("send", name, "--store-only", "--body", "x" * 2049, *late, "--to", "amqp://rabbit")
    cli.environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    cli.ok("send", name, "--store-only", "--body", "x" * 2049, *late)


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        (("--store-only", "--hop", "300"), "--hop not allowed with --store-only"),
        (("--store-only", "--park-after", "86400"), "--park-after not allowed with --store-only"),
        (("--store-only", "--bucket", "b"), "--bucket not allowed with --store-only"),
        (("--to", "amqp://rabbit"), "--to requires --store-only"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    cli: CommandLine, typed: tuple[str, ...], rule: str
) -> None:
    refused = cli.run("send", "orders", "--body", "x", "--delay", "1h", *typed)
    assert (refused.returncode, rule in " ".join(refused.stderr.split())) == (2, True)


STALLED = "stopped while a call is not answered; what is in hand comes back"


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[CommandLine]:
    """SQS accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield CommandLine(tmp_path, environment)


def stops(process: Process) -> None:
    """On SIGTERM, though a call of its is not answered."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert STALLED in errors
    assert "stopped; nothing" in errors


@pytest.mark.parametrize(
    ("command", "first_word"), [("timeout-manager", "serving"), ("dispatch", "dispatching")]
)
def test_it_ends_before_its_call_does(stalled: CommandLine, command: str, first_word: str) -> None:
    """In 4 s, said in a line; the call itself is given up after 15 s at the earliest."""
    stalled.ok("store", "create", "orders")
    with stalled.started(command, "orders") as process:
        assert process.stderr is not None
        assert first_word in process.stderr.readline()
        stops(process)


def test_a_store_that_does_not_answer_keeps_no_worker(stalled: CommandLine) -> None:
    """The worker leaves its connection as it is: the pool would wait for it, after what run waited."""
    with socket.create_server(("127.0.0.1", 0)) as database:
        store = f"postgresql://x:x@127.0.0.1:{database.getsockname()[1]}/x"
        database.settimeout(PATIENCE_SECONDS)
        with (
            stalled.started("consume", "orders", "--store", store) as process,
            database.accept()[0],
        ):
            stops(process)


ELSEWHERE = """
import signal, threading
from sqsdelay.cli.run import stop_on_signals
stop = stop_on_signals()
def end():
    while not stop._cond._waiters:
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=end).start()
stop.wait()
"""
AT_ONCE = """
import signal
from sqsdelay.cli.run import stop_on_signals
def early(number, handler, set=signal.signal):
    set(number, handler)
    callable(handler) and signal.raise_signal(number)
signal.signal = early
assert stop_on_signals().wait(9)
"""


@pytest.mark.parametrize("program", [ELSEWHERE, AT_ONCE])
def test_a_signal_at_a_bad_moment_stops_it(program: str) -> None:
    """Taken by a thread that begins or ends, where the main one waits its turn; or as soon as it may come."""
    assert ended([sys.executable, "-c", program], env=environment({})).returncode == 0
