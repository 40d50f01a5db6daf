"""No call without a time limit: servers that accept connections and say nothing, or something else."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from select import select
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
import numpy as np
import pytest
from botocore.config import Config

from lambdas.delay_consumer import handler as module
from lambdas.settings import Until, end_in_time
from sqsdelay import DelayConsumer, DelaySender
from sqsdelay.core.delay import SystemClock, check_positive, check_range
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.limits import (
    ANSWER_SECONDS,
    CALL_ATTEMPTS,
    CONNECT_SECONDS,
    FUNCTION_TIMEOUT_SECONDS,
    SHORT_CALL_ATTEMPTS,
    SHORT_CALL_SECONDS,
    WORKER_VISIBILITY_SECONDS,
)
from sqsdelay.core.message import OutgoingMessage
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import (
    BodyStoreUnavailable,
    ConfigurationError,
    QueueUnavailable,
    SqsDelayError,
    StoreUnavailable,
)
from sqsdelay.ledger.firehose import CALL_SECONDS, FirehoseLedger
from sqsdelay.parking.parking import check
from sqsdelay.ports.queues import Failure
from sqsdelay.relaying.gathering import Intake
from sqsdelay.s3 import Bucket
from sqsdelay.sqs.client import KNOWN_BOTOCORE, limit_whole_answers
from sqsdelay.sqs.cloudwatch import CloudWatchAges, short_client
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.stores import open_place, open_store
from sqsdelay.testing import InMemoryLedger, InMemoryStore
from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint
from tests.services.lambda_function import Context
from tests.services.network import DeafProxy, Handler, serving

SHORT = 0.2
"""Seconds that stand for the limits' own, so that tests need not wait."""


@pytest.fixture
def black_hole(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The AWS of the default session: it accepts connections, and never answers."""
    for name in ("sqs.client", "s3"):
        monkeypatch.setattr(f"sqsdelay.{name}.ANSWER_SECONDS", SHORT)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield url


def limits_of(client: Any) -> tuple[float, float, int]:
    config = client.meta.config
    return config.connect_timeout, config.read_timeout, config.retries["total_max_attempts"]


def test_every_client_of_ours_has_limits_of_seconds() -> None:
    """Left to botocore it is a minute for each of several attempts. A long poll's: its wait, and 5 s."""
    usual = (CONNECT_SECONDS, ANSWER_SECONDS, CALL_ATTEMPTS)
    consumer = DelayConsumer("orders", wait_seconds=20)
    sender: Any = DelaySender()._queues
    # Two of them fit into its deadline.
    assert limits_of(sender._client) == (2.5, 2.5, CALL_ATTEMPTS)
    patient: Any = DelaySender(deadline_seconds=60)._queues
    assert limits_of(patient._client) == usual
    assert limits_of(consumer._queues._client) == usual
    assert limits_of(consumer._queues._receiving) == (CONNECT_SECONDS, 25, SHORT_CALL_ATTEMPTS)
    assert limits_of(Bucket("bodies")._client) == usual
    assert limits_of(short_client("cloudwatch")) == (5, 5, SHORT_CALL_ATTEMPTS)
    ledger = FirehoseLedger("events", otherwise=InMemoryLedger())
    connect, answer, attempts = limits_of(ledger._client)
    assert attempts * (connect + answer) + 1 == CALL_SECONDS
    table: Any = open_store("dynamodb://table", endpoint="orders")
    assert max(limits_of(table._table.client)) <= 5


def test_the_limits_fit_into_each_other() -> None:
    """A stall of a call ends before a function must, and before a worker's copies are another's."""
    assert CALL_ATTEMPTS * ANSWER_SECONDS + 1 + 2 < WORKER_VISIBILITY_SECONDS
    assert 2 * SHORT_CALL_SECONDS + 1 < FUNCTION_TIMEOUT_SECONDS


def test_a_client_that_is_given_keeps_its_own(black_hole: str) -> None:
    """Its limits are its maker's choice."""
    client = boto3.client("sqs", config=Config(read_timeout=77))
    consumer = DelayConsumer("orders", client)
    assert consumer._queues._receiving is consumer._queues._client is client


def test_a_poll_longer_than_the_clients_limit_is_refused(black_hole: str) -> None:
    """Its answer would never be waited for. It is refused before anything is asked."""
    told = r"poll\(wait_seconds=20\) is longer than the wait_seconds=1"
    with pytest.raises(ConfigurationError, match=told):
        DelayConsumer("orders", wait_seconds=1).poll(wait_seconds=20)


def test_a_send_says_what_it_waits_for_and_gives_up(
    black_hole: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A line for each attempt that failed, then an error that says what and where."""
    with pytest.raises(QueueUnavailable, match=r"queue orders cannot be used now: .*127\.0\.0\.1"):
        DelaySender(deadline_seconds=60).send("orders", "x", delay=5)
    told = [m for m in caplog.messages if m.startswith("waiting for SQS, attempt ")]
    assert [m[:31] for m in told] == [f"waiting for SQS, attempt {n} of 3" for n in (1, 2)]
    assert "Read timeout" in told[0]


@pytest.mark.parametrize(("deadline", "most"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("call", ["send", "cancel", "reschedule"])
def test_a_send_begins_nothing_that_may_end_too_late(
    monkeypatch: pytest.MonkeyPatch, call: str, deadline: int, most: int
) -> None:
    """An endpoint that stalls in TLS: what a call asks for first is its last."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{listener.getsockname()[1]}")
        sender = DelaySender(deadline_seconds=deadline, store=InMemoryStore(SystemClock()))
        delayed = {} if call == "cancel" else {"delay": 3600}
        with pytest.raises(QueueUnavailable, match=r"queue orders cannot be used now: .*127\.0"):
            getattr(sender, call)("orders", "x", **delayed)
        listener.setblocking(False)
        connections = 0
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                connections += 1
    assert 1 <= connections <= most


ROLE = "arn:aws:iam::123456789012:role/r"


@pytest.mark.parametrize("url", ["dynamodb://table", "s3://bucket", f"scheduler://g?role={ROLE}"])
def test_a_stores_calls_end_with_the_function(black_hole: str, url: str) -> None:
    """Left to themselves they go on for three attempts each, and Lambda ends what they were part of."""
    store: Any = open_place(url, endpoint="orders")
    requests = list[str]()
    store.client.meta.events.register("before-send", lambda request, **_: requests.append(request))
    end_in_time(store.client, lambda _: 0 if requests else SHORT)
    with pytest.raises(
        StoreUnavailable, match=r"time for this call \(deadline_seconds, or the func"
    ):
        check(store)
    assert len(requests) == 1


def test_a_roles_credentials_are_fetched_within_the_sessions_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As docs/operations.md sets them: an STS that stalls does not take boto3's minutes."""
    role = f"[default]\nrole_arn={ROLE}\ncredential_source=Environment\n"
    (tmp_path / "config").write_text(role)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    session = botocore.session.Session(profile="default")
    session.set_default_client_config(Config(read_timeout=0.2, retries={"total_max_attempts": 1}))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", boto3.Session(botocore_session=session))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        sts = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts)
        with pytest.raises(QueueUnavailable, match=f"Read timeout on endpoint URL: .{sts}"):
            DelaySender().send("orders", "x", delay=3600)


def test_a_send_that_waits_for_others_begins_nothing_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that share one request at a time: a turn may come when the send's time is over."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        sender = DelaySender(deadline_seconds=1, linger_ms=1, concurrency=1)
        with ThreadPoolExecutor(12) as threads:
            sends = [threads.submit(sender.send, f"orders-{n}", "x", delay=5) for n in range(12)]
    errors = [send.exception() for send in sends]
    assert all(isinstance(error, QueueUnavailable) for error in errors)
    begun = [error for error in errors if "deadline_seconds" not in str(error)]
    assert 1 <= len(begun) <= 3


class Trickle(Handler):
    """Answers a byte at a time: each comes within any time limit."""

    sent = 0

    def do_POST(self) -> None:
        self.read()
        self.send_response(200)
        self.send_header("Content-Length", "500")
        self.end_headers()
        while Trickle.sent < 500 and not select([self.connection], (), (), SHORT / 10)[0]:
            self.wfile.write(b" ")
            Trickle.sent += 1


def test_an_answer_that_trickles_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is the answer's, and not anew each byte's."""
    with serving(Trickle) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(QueueUnavailable, match="Read timeout"):
            DelaySender(deadline_seconds=1).send("orders", "x", delay=5)
    assert 0 < Trickle.sent < 500


def test_another_botocore_is_said_to_give_up_late(caplog: pytest.LogCaptureFixture) -> None:
    """Its private parts may change; a sender goes on, and names the version that is tested."""
    limit_whole_answers(object())  # type: ignore[arg-type]
    assert f"is not as {KNOWN_BOTOCORE} (" in caplog.text
    pinned = Path(__file__).parents[2] / "requirements.txt"
    assert f"botocore=={KNOWN_BOTOCORE} " in pinned.read_text()


def test_numbers_of_other_libraries_are_numbers() -> None:
    """As pandas and settings files of theirs hand them out; what is none is refused by its value."""
    check_range(1, 900, hop_seconds=np.int64(900), share=Fraction(3, 2))
    check_positive(30, poll_seconds=np.float32(0.5))
    with pytest.raises(ConfigurationError, match="poll_seconds='1'; use more than 0, at most 30"):
        check_positive(30, poll_seconds="1")


def test_other_services_are_given_up_too(
    black_hole: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3, CloudWatch, DynamoDB."""
    with pytest.raises(BodyStoreUnavailable):
        Bucket("bodies").put("x", needed_until_ms=0)
    with caplog.at_level(logging.WARNING):
        assert CloudWatchAges(short_client("cloudwatch")).oldest_seconds([QueueRef("orders")]) == {}
    assert "are not known" in caplog.text
    with socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unbound.getsockname()[1]}")
        store = open_store("dynamodb://table", endpoint="orders")
        with pytest.raises(StoreUnavailable):
            store.amendments(["m-1"])


def test_a_postgresql_that_says_nothing_is_given_up(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host lives on, so that no keepalive tells; the next question gets another connection."""
    limit = "sqsdelay.stores.postgres.pool.POSTGRES_ANSWER_SECONDS"
    with DeafProxy(urlsplit(postgres).port or 0) as proxy:
        url = urlsplit(postgres)._replace(netloc=f"postgres@127.0.0.1:{proxy.port}").geturl()
        with closing(open_store(url, endpoint="silent")) as store:
            store.set_up()
            with monkeypatch.context() as short:
                short.setattr(limit, SHORT)
                proxy.swallowing.set()
                with pytest.raises(StoreUnavailable, match=r"no answer for 0\.2 s"):
                    store.pending_count()
            proxy.swallowing.clear()
            assert store.pending_count() == 0


@pytest.fixture
def last_words() -> Iterator[None]:
    """What a worker did not wait for ends, and logs, before the next test."""
    before = set(threading.enumerate())
    yield
    for left in set(threading.enumerate()) - before:
        left.join(PATIENCE_SECONDS)
        assert not left.is_alive()


@pytest.mark.usefixtures("last_words")
def test_a_worker_stops_while_nothing_answers(black_hole: str) -> None:
    """Neither its start nor its polls are waited for."""
    stop = threading.Event()
    worker = threading.Thread(target=DelayConsumer("orders").run, args=(stop,), daemon=True)
    worker.start()
    stop.set()
    worker.join(PATIENCE_SECONDS)
    assert not worker.is_alive()


@pytest.mark.usefixtures("last_words")
def test_a_worker_stops_with_a_batch_in_hand_and_nothing_answers(
    aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its copies come back; a call that is not answered is not waited for to its end."""
    monkeypatch.setattr("sqsdelay.sqs.client.ANSWER_SECONDS", 10 * PATIENCE_SECONDS)
    monkeypatch.setattr("sqsdelay.sqs.receivers.STOP_SECONDS", 0.5)
    endpoint = Endpoint.parse("stopped")
    client = aws_here.client("sqs")
    create_endpoint(client, endpoint, hop_seconds=1)
    with DeafProxy(aws_here.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        consumer = DelayConsumer("stopped", hop_seconds=1, receivers=1, wait_seconds=1)
        process = _deaf_from_then_on(monkeypatch, proxy)
        DelaySender(client, hop_seconds=1).send("stopped", "x", delay=2)
        stop = threading.Event()
        worker = threading.Thread(target=consumer.run, args=(stop,), daemon=True)
        worker.start()
        assert process.wait(PATIENCE_SECONDS)
        stop.set()
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()
    assert "stopped while SQS does not answer" in caplog.text


def _deaf_from_then_on(monkeypatch: pytest.MonkeyPatch, proxy: DeafProxy) -> threading.Event:
    """Set, and the network gone, once the consumer has copies in hand."""
    in_hand = threading.Event()
    receive = Intake.receive

    def receive_and_lose_the_network(self: Intake, *, wait_seconds: int) -> Any:
        batch = receive(self, wait_seconds=wait_seconds)
        if batch.copies:
            proxy.swallowing.set()
            in_hand.set()
        return batch

    monkeypatch.setattr(Intake, "receive", receive_and_lose_the_network)
    return in_hand


def test_the_function_answers_while_sqs_does_not(
    aws_here: LocalAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it could not send it reports as failed. Once its time is over no answer is waited for, and nothing
    is tried again."""
    create_endpoint(aws_here.client("sqs"), "stalled", hop_seconds=1)
    module.function.cache_clear()
    with DeafProxy(aws_here.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("SQSDELAY_ENDPOINT", "stalled")
        monkeypatch.setenv("SQSDELAY_HOP_SECONDS", "1")
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "stalled-delay")
        requests: list[str] = []
        monkeypatch.setattr(Until, "seconds_left", lambda _: 0 if requests else 20)
        client = module.function().relay._queues._client  # type: ignore[attr-defined]
        client.meta.events.register(
            "before-send.sqs", lambda request, **_: requests.append(request.url)
        )
        proxy.swallowing.set()
        records = [record(n, seconds) for n, seconds in enumerate(("0", "5000", "soon"))]
        answer = module.handler({"Records": records}, Context())
    module.function.cache_clear()
    failed = [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]
    assert failed == ["sqs-0", "sqs-1", "sqs-2"]
    assert len(requests) == 1


def record(number: int, seconds: str) -> dict[str, Any]:
    attribute = {"stringValue": seconds, "dataType": "String"}
    return {
        "messageId": f"sqs-{number}",
        "receiptHandle": f"handle-{number}",
        "body": "x",
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": "1800000000000",
            "ApproximateFirstReceiveTimestamp": "1800000900000",
            "MessageGroupId": f"m-{number}",
            "MessageDeduplicationId": f"m-{number}",
        },
        "messageAttributes": {"NServiceBus.AmazonSQS.DelaySeconds": attribute},
    }


class Gateway(Handler):
    """Something on the way to SQS that answers every request by itself."""

    told: tuple[bytes, int] = (b"", 200)

    def do_POST(self) -> None:
        self.read()
        self.answer(*self.told)


@pytest.fixture(scope="module")
def gateway() -> Iterator[SqsQueues]:
    config = Config(retries={"total_max_attempts": 1})
    with serving(Gateway) as url:
        yield SqsQueues(boto3.client("sqs", endpoint_url=url, config=config))


VALUES: list[Any] = [
    [],
    5,
    "text",
    None,
    True,
    {"QueueUrl": 5},
    {"Successful": 5, "Failed": 5},
    {"Successful": [5], "Failed": [[]]},
    {"Successful": [{}], "Failed": [{}]},
    {"Successful": {"Id": "0"}},
    {"Messages": 7},
    {"Messages": [7]},
    {"Messages": [{}]},
    {"Messages": [{"Body": "x", "Attributes": []}]},
    {"Attributes": 5},
    {"__type": 5, "message": []},
]
BODIES = [
    b"",
    b"<html>sign in first</html>",
    b"\xff\xfe{}",
    *(json.dumps(value).encode() for value in VALUES),
]


@pytest.mark.parametrize("status", [200, 400, 502])
@pytest.mark.parametrize("body", BODIES)
def test_an_answer_that_is_none_of_sqs_is_one_line(
    gateway: SqsQueues, body: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours or a failure of the entry, whatever a proxy makes of an answer."""
    monkeypatch.setattr(Gateway, "told", (body, status))
    url = "http://127.0.0.1/1/orders"
    entries = [OutgoingMessage("a", {}, 1), OutgoingMessage("b", {}, 1)]
    copy = ReceivedMessage("x", {}, "handle", "sqs-1", 0.0)
    failures = [
        *gateway.send_batch(url, entries),
        *gateway.send_batch(url, entries[:1]),
        *gateway.delete_batch(url, [copy, copy]),
        *gateway.hide_batch(url, [(copy, 1)]),
    ]
    for failure in failures:
        assert isinstance(failure, Failure)
        assert "\n" not in str(failure.error)
    for call in (
        lambda: gateway.url(QueueRef("orders")),
        lambda: gateway.attributes(url),
        lambda: gateway.receive_batch(url, wait_seconds=0),
    ):
        raised: SqsDelayError | None = None
        try:
            assert call() in ([], {}, "5"), "something was made of nothing"
        except SqsDelayError as error:
            raised = error
        assert "\n" not in str(raised)
