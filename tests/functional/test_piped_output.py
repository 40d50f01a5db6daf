"""The real command in a pipe, as `| cat` and `> file` have it: no terminal, no width, nothing cut."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator

import pytest

from sqsdelay.cli import app
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import DELAY_SECONDS, MESSAGE_ID, OutgoingMessage, string
from sqsdelay.core.rejection import rejected
from sqsdelay.sqs import SqsQueues
from sqsdelay.testing.local_aws import LocalAws
from tests.messages import a_copy
from tests.patience import ended
from tests.services.endpoints import create_endpoint
from tests.services.processes import SQSDELAY, environment, run

REASON = "SQS refused it: " + "because it said so, and went on to say, " * 20 + "the end"
BODY = "begin " + "0123456789 " * 400 + "end"


@pytest.fixture
def orders(local_aws: LocalAws) -> Endpoint:
    endpoint = Endpoint.parse(f"{'o' * 60}-{uuid.uuid4().hex[:7]}")
    create_endpoint(local_aws.client("sqs"), endpoint)
    return endpoint


def put(aws: LocalAws, queue: QueueRef, entry: OutgoingMessage) -> None:
    queues = SqsQueues(aws.client("sqs"))
    queues.send_batch(queues.url(queue), [entry])


def ok(aws: LocalAws, *arguments: str) -> str:
    done = run(*arguments, env=aws.environment())
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_nothing_sets_a_width() -> None:
    """Or these tests would not see what a user sees."""
    assert not {"COLUMNS", "TERMINAL_WIDTH"} & environment({}).keys()


def refused(*arguments: str, env: dict[str, str]) -> list[str]:
    """The lines on stderr where stdout is on a full disk."""
    command = f"{shlex.join([*SQSDELAY, *arguments])} > /dev/full"
    done = ended(["bash", "-c", command], env=environment(env))
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("sqsdelay: the output cannot be written: ")
    return done.stderr.splitlines()


@pytest.mark.parametrize("arguments", [["--help"], ["cost", "--delay", "1d", "--json"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    """Not a trace; the exit code says that it failed."""
    assert len(refused(*arguments, env={})) == 1


def test_a_full_disk_ends_a_worker(local_aws: LocalAws) -> None:
    """After the batches in hand, all of whose messages are counted; it does not go on at a crawl."""
    name, env = f"full-{uuid.uuid4().hex[:8]}", local_aws.environment()
    client = local_aws.client("sqs")
    create_endpoint(client, name, hop_seconds=1)
    messages = "\n".join(json.dumps({"body": n, "delay": 1.5}) for n in range(10))
    sent = run("send", name, "--hop", "1", "--file", "-", env=env, stdin=messages)
    assert sent.returncode == 0, sent.stderr
    *_, told, _ = lines = refused("consume", name, "--hop", "1", "--wait", "1", "--json", env=env)
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    counts = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    there = sum(int(n) for key, n in counts.items() if key.startswith("ApproximateNumberOf"))
    assert told == f"stopped; {there} handed-over"
    assert not any("trying again" in line for line in lines)


def test_nothing_is_deleted_that_cannot_be_shown(local_aws: LocalAws, orders: Endpoint) -> None:
    """With stdout closed, as a service manager may start it."""
    queues = SqsQueues(local_aws.client("sqs"))
    url = queues.url(orders.queue)
    queues.send_batch(url, [OutgoingMessage("kept", {}, size=4)])
    receive = shlex.join([*SQSDELAY, "receive", orders.name, "--delete", "--count", "1"])
    closed = ["bash", "-c", f"{receive} >&-"]
    done = ended(closed, env=environment(local_aws.environment()))
    assert (done.returncode, "stdout is closed" in done.stderr) == (1, True)
    assert [copy.body for copy in queues.receive_batch(url, wait_seconds=1)] == ["kept"]


def test_errors_list_loses_no_reason(local_aws: LocalAws, orders: Endpoint) -> None:
    """Each message on one line, with its reason and its body to their ends."""
    copy = a_copy(
        {DELAY_SECONDS: string("x"), MESSAGE_ID: string("m" * 128)},
        body=BODY,
        group_id="m" * 128,
        deduplication_id="m" * 128,
    )
    put(local_aws, orders.error_queue, rejected(copy, REASON))
    printed = ok(local_aws, "errors", "list", orders.name, "--bodies")
    (line,) = (line for line in printed.splitlines() if "m" * 128 in line)
    assert BODY in line
    told = json.loads(ok(local_aws, "errors", "list", orders.name, "--json"))["reason"]
    assert told in line
    assert "…" not in printed


def test_receive_keeps_whole_bodies_and_the_messages(local_aws: LocalAws, orders: Endpoint) -> None:
    """What is not deleted can be read again at once; what is, was printed to its end."""
    put(local_aws, orders.queue, OutgoingMessage(BODY, {}, len(BODY)))
    one = ("receive", orders.name, "--count", "1", "--idle", "5")
    assert ok(local_aws, *one).endswith(f"  {BODY}\n")
    assert json.loads(ok(local_aws, *one, "--json"))["body"] == BODY
    assert ok(local_aws, *one, "--delete").endswith(f"  {BODY}\n")
    assert ok(local_aws, "receive", orders.name, "--idle", "1") == ""


def test_names_are_whole(local_aws: LocalAws, orders: Endpoint) -> None:
    """A queue's name of 80 characters stands in a table."""
    assert f"{orders.name}-delay.fifo" in ok(local_aws, "status", orders.name)


def commands() -> Iterator[tuple[str, set[str]]]:
    """Each command, and its options."""
    import typer.main

    def walk(command: object, path: str) -> Iterator[tuple[str, set[str]]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            options = {text for each in command.params for text in each.opts}  # type: ignore[attr-defined]
            yield path, options
            return
        for name, each in inner.items():
            yield from walk(each, f"{path} {name}".strip())

    yield from walk(typer.main.get_command(app), "")


SHOW_NO_DATA = {"store create", "rabbitmq declare", "rabbitmq teardown"}


def test_every_command_that_shows_data_speaks_json() -> None:
    """A program reads JSON; who only does something has an exit code."""
    without = {path for path, options in commands() if "--json" not in options}
    assert without == SHOW_NO_DATA


def test_help_is_plain_in_a_pipe(local_aws: LocalAws) -> None:
    """No boxes, and no option's name cut in them; commands stand under the boxes' headings."""
    printed = ok(local_aws, "dispatch", "--help")
    assert "--recovery-failures" in printed
    assert "│" not in printed
    assert "…" not in printed.replace("://…", "")
    lines = ok(local_aws, "--help").splitlines()
    headings = ["Send and receive:", "Look:", "Run:", "Operate:", "Plan and account:"]
    assert [line for line in lines if line in headings] == headings
    assert "Commands:" not in lines
    assert "Commands:" in ok(local_aws, "errors", "--help").splitlines()
