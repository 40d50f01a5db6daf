"""``sqsdelay status`` and ``sqsdelay errors`` on the local AWS: what they print and answer."""

from __future__ import annotations

import io
import json
import time
import uuid
import zipfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from sqsdelay import DelaySender, Message
from sqsdelay.core.delay import SystemClock, utc
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import DELAY_SECONDS, ERROR, OutgoingMessage, string
from sqsdelay.core.outgoing import identity
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.rejection import rejected
from sqsdelay.core.stored_message import to_store
from sqsdelay.errors import QueueUnavailable
from sqsdelay.sqs import SqsQueues
from sqsdelay.sqs.cloudwatch import CloudWatchAges
from sqsdelay.sqs.consumer import DelayConsumer
from sqsdelay.stores import DynamoDbStore, open_store
from sqsdelay.testing.local_aws import LocalAws
from tests.messages import a_copy
from tests.services.endpoints import create_endpoint
from tests.services.processes import typed

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(aws_here: LocalAws) -> Cli:
    """``sqsdelay`` on the local AWS."""
    return typed


@pytest.fixture
def orders(local_aws: LocalAws) -> Endpoint:
    """An endpoint of its own for each test."""
    endpoint = Endpoint.parse(f"orders-{uuid.uuid4().hex[:8]}")
    create_endpoint(local_aws.client("sqs"), endpoint)
    return endpoint


def reject(aws: LocalAws, endpoint: Endpoint, message_id: str, *, seconds: str) -> int:
    """A copy as the delay consumer rejects it; returns when it was sent, epoch milliseconds."""
    queues = SqsQueues(aws.client("sqs"))
    sent_ms = SystemClock().now_ms()
    attributes = {DELAY_SECONDS: string(seconds), "user": string("x")}
    ids = {"group_id": message_id, "deduplication_id": message_id}
    copy = a_copy(attributes, body=f"secret of {message_id}", sent_ms=sent_ms, **ids)
    queues.send_batch(queues.url(endpoint.error_queue), [rejected(copy, "SQS refused it")])
    return sent_ms


def received(aws: LocalAws, queue: QueueRef) -> list[ReceivedMessage]:
    queues = SqsQueues(aws.client("sqs"))
    return queues.receive_batch(queues.url(queue), wait_seconds=1)


def test_status_shows_queues_ages_and_the_store(
    cli: Cli, local_aws: LocalAws, orders: Endpoint, tmp_path: Path
) -> None:
    """Everything the summary adds up, as a table and as JSON; ages are CloudWatch's."""
    sender = DelaySender(local_aws.client("sqs"))
    sender.send_many(orders.name, [Message("x", delay=3600)] * 3 + [Message("x", delay=60)])
    reject(local_aws, orders, "m-1", seconds="1000")
    url = f"sqlite:///{tmp_path}/orders.db"
    due_ms = SystemClock().now_ms() + 86_400_000
    with closing(open_store(url, endpoint=orders.name)) as store:
        store.set_up()
        store.store([to_store(Message("x", due_at=utc(due_ms)), orders.name, now_ms=0)])
    age = {
        "MetricName": "ApproximateAgeOfOldestMessage", "Value": 907,
        "Dimensions": [{"Name": "QueueName", "Value": orders.delay_queue.name}],
    }  # fmt: skip
    local_aws.client("cloudwatch").put_metric_data(Namespace="AWS/SQS", MetricData=[age])
    code, out, _ = cli("status", orders.name, "--store", url, "--json")
    status = json.loads(out)
    queues = {queue.pop("role"): queue for queue in status.pop("queues")}
    assert code == 0
    assert status == {
        "endpoint": orders.name, "pending": 4, "in_flight": 0, "oldest_seconds": 907, "errors": 1,
        "next_due": utc(due_ms).isoformat(timespec="milliseconds"), "overdue_seconds": 0, "parked": 1,
        "parking_unread": None,
    }  # fmt: skip
    assert queues["delay queue"] == {
        "name": orders.delay_queue.name, "visible": 0, "in_flight": 0, "delayed": 3, "oldest_seconds": 907,
    }  # fmt: skip
    code, out, _ = cli("status", orders.name)
    rows = dict(line.split("\t") for line in out.splitlines()[:6])
    assert code == 0
    assert rows == {
        "pending": "about 4", "in flight": "about 0", "oldest": "15 min 7 s", "errors": "about 1",
        "parked": "-", "next due": "-",
    }  # fmt: skip
    assert orders.error_queue.name in out


def test_status_of_a_store_that_is_missing_shows_the_queues_all_the_same(
    cli: Cli, orders: Endpoint, tmp_path: Path
) -> None:
    """In an outage the rest is what one wants to see; the exit code tells."""
    code, out, err = cli("status", orders.name, "--store", f"sqlite:///{tmp_path}/none.db")
    assert code == 1
    assert orders.delay_queue.name in out
    assert err.startswith("store: ")


def test_a_missing_endpoint_is_one_line(cli: Cli) -> None:
    """What is missing, where it was looked for, and the command that creates it."""
    for command, queue in (
        ("status nowhere", "nowhere-delay.fifo"),
        ("errors list nowhere", "nowhere-delay-error"),
        ("errors retry nowhere --all", "nowhere-delay-error"),
        ("errors retry nowhere --all --delay 1d", "nowhere-delay-error"),
    ):
        code, out, err = cli("--region", "eu-west-3", *command.split())
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"queue {queue} does not exist" in err
        assert "sqsdelay --region eu-west-3 endpoint create nowhere." in err
        assert ". It was looked for in eu-west-3 at http" in err


def test_ages_need_no_permission_to_show_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """Where CloudWatch may not be asked, no age is known, and a warning says why."""
    import boto3

    client = boto3.client("cloudwatch")
    with Stubber(client) as stubbed:
        stubbed.add_client_error("get_metric_data", "AccessDenied")
        assert CloudWatchAges(client).oldest_seconds([QueueRef("orders")]) == {}
    assert "ages of the oldest messages are not known" in caplog.text


def test_a_queue_of_another_account_is_asked_for_there() -> None:
    """Ours may have a queue of the same name."""
    import boto3

    client: Any = boto3.client("cloudwatch")
    asked: list[Any] = []
    client.meta.events.register(
        "provide-client-params.cloudwatch.GetMetricData",
        lambda params, **_: asked.extend(params["MetricDataQueries"]),
    )
    with Stubber(client) as stubbed:
        answer = [{"Id": f"q{n}", "Timestamps": [], "Values": []} for n in (0, 1)]
        stubbed.add_response("get_metric_data", {"MetricDataResults": answer})
        queues = [QueueRef("orders"), QueueRef("orders", "123456789012")]
        assert CloudWatchAges(client).oldest_seconds(queues) == {}
    assert [query.get("AccountId") for query in asked] == [None, "123456789012"]


def test_errors_list_shows_and_leaves(cli: Cli, local_aws: LocalAws, orders: Endpoint) -> None:
    """Reason, due time and size; bodies only when asked for."""
    sent_ms = reject(local_aws, orders, "m-1", seconds="1000")
    reject(local_aws, orders, "m-2", seconds="soon")
    code, out, _ = cli("errors", "list", orders.name, "--json")
    lines = {line["message_id"]: line for line in map(json.loads, out.splitlines())}
    assert (code, set(lines)) == (0, {"m-1", "m-2"})
    due = utc(sent_ms + 1_000_000).isoformat(timespec="milliseconds")
    assert {name: lines["m-1"][name] for name in ("due", "receives", "bytes", "reason")} == {
        "due": due, "receives": 1, "bytes": len("secret of m-1"), "reason": "SQS refused it",
    }  # fmt: skip
    assert lines["m-2"]["due"] is None
    assert "secret" not in out
    code, out, _ = cli("errors", "list", orders.name)
    assert (code, "secret" in out, due in out) == (0, False, True)
    assert [line.count("\t") for line in out.splitlines()] == [5, 5]
    code, out, _ = cli("errors", "list", orders.name, "--bodies", "--limit", "1")
    assert "secret of m-" in out
    code, out, _ = cli("errors", "list", orders.name, "--bodies", "--json")
    assert json.loads(out.splitlines()[0])["body"].startswith("secret of m-")
    assert len(received(local_aws, orders.error_queue)) == 2


def test_retry_sends_on_what_it_is_told(cli: Cli, local_aws: LocalAws, orders: Endpoint) -> None:
    """By id, dry, and all: with what is left, and why, and the exit code."""
    due_ms = reject(local_aws, orders, "m-1", seconds="0")
    reject(local_aws, orders, "m-2", seconds="5000")
    reject(local_aws, orders, "poison", seconds="soon")
    code, out, err = cli("errors", "retry", orders.name, "--all", "--dry-run")
    assert (code, err.strip()) == (1, "1 left, 2 would-send")
    due = utc(due_ms).isoformat(timespec="milliseconds")
    assert f"m-1  would-send to {orders.name}, due {due}" in out
    code, out, err = cli("errors", "retry", orders.name, "--message-id", "m-1", "--json")
    assert (code, json.loads(out)) == (0, {
        "message_id": "m-1", "status": "sent", "queue": orders.name, "due": due, "error": None,
    })  # fmt: skip
    (copy,) = received(local_aws, orders.queue)
    assert copy.body == "secret of m-1"
    assert copy.attributes == {"user": string("x"), **identity("m-1", due_ms)}
    code, out, err = cli("errors", "retry", orders.name, "--message-id", "m-1")
    assert (code, out) == (1, "")
    assert err.splitlines() == ["m-1  not found", "no messages"]
    code, out, err = cli("errors", "retry", orders.name, "--all", "--delay", "0")
    assert (code, err.strip()) == (0, "2 sent")
    assert f"m-2  sent to {orders.delay_queue.name}, due " in out
    assert received(local_aws, orders.error_queue) == []
    (poison,) = received(local_aws, orders.queue)
    assert poison.body == "secret of poison"


def test_a_retrys_delay_counts_by_the_brokers_clock(
    cli: Cli, local_aws: LocalAws, orders: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is ten minutes behind makes nothing early."""
    reject(local_aws, orders, "poison", seconds="soon")
    true_ms = SystemClock().now_ms()
    behind = time.time_ns() - 600 * 10**9 - time.monotonic_ns()
    monkeypatch.setattr("time.time_ns", lambda: behind + time.monotonic_ns())
    code, out, _ = cli("errors", "retry", orders.name, "--all", "--delay", "1h", "--json")
    monkeypatch.undo()
    assert code == 0
    due = datetime.fromisoformat(json.loads(out)["due"])
    assert due.timestamp() * 1000 > true_ms + 3_600_000 - 1000


def test_no_rejection_is_listed_too(cli: Cli, local_aws: LocalAws, orders: Endpoint) -> None:
    """Somebody put it there; it has no reason and no due time, and brackets are no markup."""
    queues = SqsQueues(local_aws.client("sqs"))
    queues.send_batch(queues.url(orders.error_queue), [OutgoingMessage("[/x]", {}, 4)])
    code, out, _ = cli("errors", "list", orders.name, "--bodies")
    assert (code, "did not fit on the message" in out, "[/x]" in out) == (0, True, True)


def test_hostile_text_is_its_own_row(cli: Cli, local_aws: LocalAws, orders: Endpoint) -> None:
    """Whoever may send there can put no other message's row or line before you, nor end the command."""
    reason = "\x1b[2J\ud800\u202e\n:heart: [red]"
    about = {"messageId": "m-1\nm-2", "reason": reason, "sentTimestamp": True}
    queues = SqsQueues(local_aws.client("sqs"))
    hostile = OutgoingMessage("b", {ERROR: string(json.dumps(about))}, 1)
    queues.send_batch(queues.url(orders.error_queue), [hostile])
    code, out, _ = cli("errors", "list", orders.name)
    assert code == 0
    assert r"m-1\x0am-2" in out
    assert r"\x1b[2J\ud800\u202e\x0a:heart: [red]" in out
    code, out, _ = cli("errors", "retry", orders.name, "--all")
    assert code == 1
    [line] = out.splitlines()
    assert line.startswith(r"m-1\x0am-2  left: ")


def store_overdue(store: DynamoDbStore, *, due_at: datetime) -> None:
    store.set_up()
    message = Message("parked", due_at=due_at, message_id="late")
    store.store([to_store(message, "orders", now_ms=0)])


def test_a_store_nobody_empties_is_noticed(cli: Cli, local_aws: LocalAws, orders: Endpoint) -> None:
    """After a deployment without its dispatcher all was said to be well. Nobody names the table."""
    assert cli("endpoint", "check", orders.name)[0] == 0
    table = f"{orders.name}.parked"
    client = local_aws.client("dynamodb")
    with closing(DynamoDbStore(table, endpoint=orders.name, client=client, shards=1)) as store:
        store_overdue(store, due_at=datetime.now(UTC) + timedelta(days=1))
        assert cli("endpoint", "check", orders.name)[0] == 0
        assert "1" in cli("status", orders.name)[1].split("parked", 1)[1].splitlines()[0]
        assert store.cancel(["late"]) == [True]
        # Half a minute more than it says: the emulator's clock and this one may differ.
        store_overdue(store, due_at=datetime.now(UTC) - timedelta(hours=3, seconds=30))
    remedy = f"-c store=dynamodb, or sqsdelay dispatch {orders.name} --store dynamodb://{table}"
    code, out, _ = cli("endpoint", "check", orders.name, "--json")
    assert code == 1
    [problem] = json.loads(out)["problems"]
    assert problem["text"].startswith("1 parked messages, the earliest overdue since ")
    assert "no dispatcher is running" in problem["text"]
    assert remedy in problem["remedy"]
    code, out, err = cli("status", orders.name, "--json")
    assert code == 1
    assert json.loads(out)["overdue_seconds"] >= 10_800
    assert "in the store is 3 h" in err
    assert remedy in err


def test_a_deployed_store_of_another_version_is_told_though_nobody_named_it(
    cli: Cli, local_aws: LocalAws, orders: Endpoint
) -> None:
    """With the remedy that the error carries: making the store anew is none."""
    client = local_aws.client("dynamodb")
    table = f"{orders.name}.parked"
    with closing(DynamoDbStore(table, endpoint=orders.name, client=client)) as store:
        store.set_up()
        (mark,) = store._table.get([store._table.format])
        store._table.put({**mark, "v": {"N": "7"}})
    code, out, _ = cli("endpoint", "check", orders.name, "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, "has schema version 7" in problem["text"]) == (1, True)
    assert problem["remedy"].startswith("name another table, and empty this one")
    code, out, err = cli("status", orders.name)
    assert (code, "has schema version 7" in err, "pending" in out) == (1, True, True)


@pytest.mark.parametrize("has_store", [False, True])
def test_a_retained_store_that_nobody_serves_is_noticed(
    cli: Cli, local_aws: LocalAws, orders: Endpoint, has_store: bool
) -> None:
    """Long before anything in it is due: the deployed delay consumer has no store any more. What gathers in
    a parking queue whose tags tell no store may well be for the one that it has."""
    sqs = local_aws.client("sqs")
    parking = sqs.create_queue(QueueName=orders.parking_queue.name)["QueueUrl"]
    sqs.send_message(QueueUrl=parking, MessageBody="gathered")
    url = f"dynamodb://{orders.name}.parked"
    client = local_aws.client("dynamodb")
    with closing(DynamoDbStore(url[11:], endpoint=orders.name, client=client, shards=1)) as store:
        store_overdue(store, due_at=datetime.now(UTC) + timedelta(days=300))
    consumed_by_a_function(local_aws, orders, {"SQSDELAY_STORE": url} if has_store else {})
    code, out, _ = cli("endpoint", "check", orders.name, "--json")
    told = [problem["text"] for problem in json.loads(out)["problems"]]
    if has_store:
        assert (code, told) == (0, [])
    else:
        assert code == 1
        assert told[0].startswith("1 parked messages, and the deployed delay consumer has another")
        assert f"--store {url}" in out
        assert told[1].startswith("1 messages, and the deployed delay consumer has another")


def test_a_parking_queue_that_cannot_be_read_is_not_taken_for_none(
    cli: Cli, orders: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Throttled: what it holds is not known, and the rest is shown."""
    ask = SqsQueues.url

    def url(queues: SqsQueues, queue: QueueRef) -> str:
        if queue == orders.parking_queue:
            raise QueueUnavailable("RequestThrottled")
        return ask(queues, queue)

    monkeypatch.setattr(SqsQueues, "url", url)
    told = "could not be read: RequestThrottled"
    code, out, err = cli("status", orders.name)
    assert (code, "pending" in out) == (0, True)
    assert f"{orders.parking_queue.name} {told}" in err
    code, out, _ = cli("endpoint", "check", orders.name, "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["subject"], problem["text"]) == (1, orders.parking_queue.name, told)


def consumed_by_a_function(aws: LocalAws, endpoint: Endpoint, variables: dict[str, str]) -> None:
    """A function in place of the deployed delay consumer; it is never run."""
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("handler.py", "")
    functions, sqs = aws.client("lambda"), aws.client("sqs")
    function = functions.create_function(
        FunctionName=endpoint.name,
        Runtime="python3.12",
        Role="arn:aws:iam::000000000000:role/any",
        Handler="handler.handler",
        Code={"ZipFile": code.getvalue()},
        Environment={"Variables": variables},
    )
    url = sqs.get_queue_url(QueueName=endpoint.delay_queue.name)["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    functions.create_event_source_mapping(
        EventSourceArn=attributes["QueueArn"], FunctionName=function["FunctionArn"], Enabled=False
    )


def test_queues_that_take_less_are_told(cli: Cli, local_aws: LocalAws, orders: Endpoint) -> None:
    """What Terraform made for years."""
    sqs = local_aws.client("sqs")
    for name in (orders.name, orders.error_queue.name):
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "262144"})
    code, out, _ = cli("endpoint", "check", orders.name, "--json")
    problems = {problem["subject"]: problem for problem in json.loads(out)["problems"]}
    assert code == 1
    assert set(problems) == {orders.name, orders.error_queue.name}
    assert "it takes messages of 262144 bytes" in problems[orders.name]["text"]
    assert "lost in 14 days" in problems[orders.error_queue.name]["text"]
    assert "MaximumMessageSize=1048576" in problems[orders.name]["remedy"]
    assert not any(problem["fatal"] for problem in problems.values())


def test_a_worker_says_what_its_queues_take(
    local_aws: LocalAws, orders: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """At its start, and works."""
    sqs = local_aws.client("sqs")
    url = sqs.get_queue_url(QueueName=orders.name)["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "262144"})
    DelayConsumer(orders.name, sqs).start()
    assert f"{orders.name}: it takes messages of 262144 bytes" in caplog.text
