"""What schedules have sent into the parking queue: the function and the worker that hand it over, on moto."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from moto import mock_aws

from lambdas.dispatcher import handler as module
from lambdas.settings import report_outcomes
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import GATHERING_SECONDS
from sqsdelay.core.schedule_input import input_of
from sqsdelay.core.stored_message import Amendment
from sqsdelay.errors import QueueMissing, QueueUnavailable, SchemaMismatch
from sqsdelay.ports.queues import Failure
from sqsdelay.relaying import gathering
from sqsdelay.relaying.outcomes import Outcome
from sqsdelay.sqs import DelayConsumer
from sqsdelay.sqs.endpoints import create_queue, due_queue_attributes
from sqsdelay.stores import SchedulerStore
from sqsdelay.testing.local_aws import LocalAws
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import create_endpoint
from tests.services.lambda_function import Context

ROLE = "arn:aws:iam::123456789012:role/orders"


class Site:
    """An endpoint whose messages wait as schedules."""

    def __init__(self, client: Callable[[str], Any], name: str = "orders") -> None:
        self.sqs = client("sqs")
        self.name = name
        create_endpoint(self.sqs, name)
        create_queue(self.sqs, Endpoint.parse(name).parking_queue, due_queue_attributes())
        self.store = SchedulerStore(name, role_arn=ROLE, endpoint=name, client=client("scheduler"))
        self.store.set_up()

    def url(self, suffix: str = "") -> str:
        return str(self.sqs.get_queue_url(QueueName=self.name + suffix)["QueueUrl"])

    def fired(self, message_id: str, *, due_in_seconds: float = -1, body: str = "{}") -> int:
        """As a schedule sends it whose message is visible by now; when it is due."""
        now_ms = time.time_ns() // 1_000_000
        message = a_message(
            message_id, now_ms + round(due_in_seconds * 1000), to=self.name, body=body.encode()
        )
        url = self.url("-parking")
        text = input_of(message, url, fires_at=now_ms // 1000 - 900, kept_since_ms=now_ms - DAY_MS)
        self.sqs.send_message(**json.loads(text) | {"DelaySeconds": 0})
        return message.due_ms

    def received(self, suffix: str = "") -> Iterator[str]:
        """Ids of what is visible, each message once."""
        url = self.url(suffix)
        while got := self.sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, MessageAttributeNames=["All"]
        ).get("Messages"):
            for each in got:
                yield each["MessageAttributes"]["sqsdelay.MessageId"]["StringValue"]
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])

    def counts(self, suffix: str = "") -> tuple[int, int, int]:
        """Messages of a queue: visible, hidden by their timers, received."""
        found = self.sqs.get_queue_attributes(QueueUrl=self.url(suffix), AttributeNames=["All"])
        names = ("", "Delayed", "NotVisible")
        visible, delayed, received = (
            int(found["Attributes"][f"ApproximateNumberOfMessages{name}"]) for name in names
        )
        return visible, delayed, received


DAY_MS = 86_400_000
CONTEXT = Context(remaining_ms=290_000)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("SQSDELAY_ENDPOINT", "orders")
    monkeypatch.setenv("SQSDELAY_STORE", f"scheduler://orders?role={ROLE}")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders-dispatcher")
    module.function.cache_clear()
    with mock_aws():
        clients: Any = boto3.client
        yield Site(clients)
    module.function.cache_clear()


def test_the_function_hands_over_what_is_neither_cancelled_nor_moved(site: Site) -> None:
    """To the second by a message timer; what was moved far away becomes a schedule again."""
    for name, seconds in (("due", -1), ("soon", 700), ("gone", 600), ("moved", 500)):
        site.fired(name, due_in_seconds=seconds)
    now_ms = time.time_ns() // 1_000_000
    gone = Amendment(message_id="gone", at_ms=now_ms)
    moved = Amendment(message_id="moved", at_ms=now_ms, due_ms=now_ms + 9 * DAY_MS)
    site.store.amend([gone, moved])
    fates = module.handler({"park": True}, CONTEXT)
    assert fates == {"handed-over": 2, "parked": 1, "cancelled": 1}
    assert site.counts() == (1, 1, 0)
    assert [each.message_id for each in site.store.pending(9)] == ["moved"]
    assert site.counts("-parking") == (0, 0, 0)


def test_the_function_refuses_another_version_whatever_is_in_the_queue(site: Site) -> None:
    """At once, so that its alarm rings; nothing leaves the parking queue."""
    client: Any = boto3.client("scheduler")
    (mark,) = client.list_schedules(GroupName="orders")["Schedules"]
    found = client.get_schedule(GroupName="orders", Name=mark["Name"])
    kept = {each: found[each] for each in ("ScheduleExpression", "FlexibleTimeWindow", "Target")}
    client.update_schedule(GroupName="orders", Name=mark["Name"], Description="2", **kept)
    for left in (0, 1):
        told = r"version 2, .*; name another schedule group, and"
        with pytest.raises(SchemaMismatch, match=told):
            module.handler({"park": True}, CONTEXT)
        assert site.counts("-parking") == (left, 0, 0)
        site.fired("due")


def outcomes_in_memory() -> int:
    return sum(isinstance(each, Outcome) for each in gc.get_objects())


def test_a_worker_keeps_no_round(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one has the memory for itself."""
    monkeypatch.setattr(gathering, "AT_ONCE", 10)
    consumer = DelayConsumer("orders", site.sqs, store=site.store)
    consumer.start()
    for n in range(10):
        site.fired(f"m{n}")
    kept: list[int] = []
    rounds = consumer._parked(threading.Event(), lambda: kept.append(outcomes_in_memory()))
    deque(rounds, maxlen=0)
    assert kept == [0]


def test_a_run_that_finds_much_starts_others_which_start_none(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []

    class Functions:
        def invoke(self, **asked: Any) -> None:
            started.append(json.loads(asked["Payload"]))

    real = boto3.client
    monkeypatch.setattr(
        boto3, "client", lambda s, **k: Functions() if s == "lambda" else real(s, **k)
    )
    monkeypatch.setattr(gathering, "AT_ONCE", 10)
    kept: list[int] = []

    def counted(*arguments: Any) -> Any:
        kept.append(outcomes_in_memory())
        return report_outcomes(*arguments)

    monkeypatch.setattr("lambdas.settings.report_outcomes", counted)
    for n in range(40):
        site.fired(f"m{n}")
    assert module.handler({"park": True}, CONTEXT) == {"handed-over": 40}
    assert started == [{"park": "help"}] * module.HELPERS
    # Those of one round: with their bodies, those of a whole run would take more memory than there is.
    assert max(kept) == 10
    for n in range(40, 60):
        site.fired(f"m{n}")
    assert module.handler({"park": "help"}, CONTEXT) == {"handed-over": 20}
    assert len(started) == module.HELPERS


def test_lambdas_own_trace_header_does_not_travel_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message without a header of its own arrives without one, and without Lambda's recursion count."""
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-abc;Parent=def;Sampled=0;Lineage=1:fa:15")
    calls: list[list[str]] = []
    client = module.function().outbox._queues._client  # type: ignore[attr-defined]
    client.meta.events.register_last(
        "before-send.sqs",
        lambda request, **_: calls.append([name.lower() for name in request.headers]),
    )
    site.fired("due")
    assert module.handler({"park": True}, CONTEXT) == {"handed-over": 1}
    assert calls
    assert not [headers for headers in calls if "x-amzn-trace-id" in headers]


def test_a_worker_empties_the_parking_queue_at_its_start(
    local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every five minutes from then on; with threads where there is more than a round."""
    site = Site(local_aws.client, f"fired-{uuid.uuid4().hex[:8]}")
    monkeypatch.setattr(gathering, "AT_ONCE", 10)
    for n in range(100):
        site.fired(f"m{n}")
    told = threading.Semaphore(0)
    stop = threading.Event()
    consumer = DelayConsumer(
        site.name,
        site.sqs,
        store=site.store,
        wait_seconds=0,
        on_outcomes=lambda outcomes: told.release(len(outcomes)),
    )
    worker = threading.Thread(target=consumer.run, args=(stop,))
    worker.start()
    try:
        for _ in range(100):
            assert told.acquire(timeout=PATIENCE_SECONDS)
    finally:
        stop.set()
        worker.join(PATIENCE_SECONDS)
    assert site.counts() == (100, 0, 0)
    assert site.counts("-parking") == (0, 0, 0)


class Outage(threading.Event):
    """Stops a worker after a round; as its parker, sends for help, and fails so often; each helper too."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failing = {True: iter(range(7)), False: iter(range(failures))}
        self.threads = set[object]()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout == GATHERING_SECONDS:
            self.set()
        return self.is_set()

    def rounds(self, *, more: Any, crowded: Callable[[], object] | None = None) -> list[Any]:
        self.threads.add(threading.current_thread())
        if crowded is not None:
            crowded()
        for _ in self.failing[crowded is None]:
            raise QueueUnavailable("away")
        return []


@pytest.mark.parametrize("failures", [0, 1])
def test_an_outage_that_stops_helpers_is_told_once(
    site: Site, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    """They end, one thread tells and tries again, with seven others. The round ends with the last of them."""
    consumer = DelayConsumer("orders", site.sqs, store=site.store)
    stop: Any = Outage(failures)
    consumer._parker = stop
    consumer._park_until_stopped(stop)
    assert len(stop.threads) == 1 + 7 + 7
    [line] = caplog.messages
    assert line.startswith("cannot receive, trying again in ")


def test_the_function_gives_up_what_is_refused_too_often(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as many receives as the environment says, as the delay consumer does."""
    monkeypatch.setenv("SQSDELAY_MAX_RECEIVES", "1")
    sent = module.function().outbox._queues.send_batch

    def refused(url: str, entries: Any) -> Any:
        if not url.endswith("/orders"):
            return sent(url, entries)
        failure = Failure("InvalidMessageContents", QueueUnavailable("no"), transient=False)
        return [failure] * len(entries)

    monkeypatch.setattr(module.function().outbox._queues, "send_batch", refused)
    site.fired("refused")
    assert module.handler({"park": True}, CONTEXT) == {"rejected": 1}
    assert (site.counts("-delay-error")[0], site.counts("-parking")) == (1, (0, 0, 0))


FORKS = multiprocessing.get_context("fork")


def invoke(event: dict[str, object], fates: Any) -> None:
    """One invocation of the function, in a process of its own; it starts others as Lambda does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    real: Any = boto3.client

    class Functions:
        def invoke(self, *, Payload: str, **_: object) -> None:
            FORKS.Process(target=invoke, args=(json.loads(Payload), fates)).start()

    made: Any = boto3
    made.client = lambda name, **more: Functions() if name == "lambda" else real(name, **more)
    fates.put(module.handler(event, CONTEXT))


def test_what_is_due_at_once_is_handed_over_once_by_ten_runs(
    local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the function's code, in processes of their own. None is early, and what the destination
    refuses is in the error queue."""
    monkeypatch.setattr(gathering, "AT_ONCE", 20)
    name, messages, refused = f"crowd-{uuid.uuid4().hex[:8]}", 200, 3
    settings = {"SQSDELAY_ENDPOINT": name, "SQSDELAY_STORE": f"scheduler://{name}?role={ROLE}"}
    settings |= {"SQSDELAY_MAX_RECEIVES": "1", "AWS_LAMBDA_FUNCTION_NAME": name}
    for variable, value in (local_aws.environment() | settings).items():
        monkeypatch.setenv(variable, value)
    site = Site(local_aws.client, name)
    site.sqs.set_queue_attributes(QueueUrl=site.url(), Attributes={"MaximumMessageSize": "1024"})

    def fired(n: int) -> tuple[str, int]:
        body = "x" * (2_048 if n < refused else 10)
        return f"m{n}", site.fired(f"m{n}", due_in_seconds=5 + n / 50, body=body)

    with ThreadPoolExecutor(4) as pool:
        due = dict(pool.map(fired, range(messages)))
    told: Any = FORKS.Queue()
    first = FORKS.Process(target=invoke, args=({"park": True}, told))
    first.start()
    fates: Counter[str] = Counter()
    while fates.total() < messages:
        fates += Counter(told.get(timeout=PATIENCE_SECONDS))
    first.join(PATIENCE_SECONDS)
    copies: Counter[str] = Counter()
    while any(site.counts()):
        for each in site.received():
            copies[each] += 1
            assert time.time_ns() // 1_000_000 >= due[each]
    assert copies == Counter(list(due)[refused:])
    assert Counter(site.received("-delay-error")) == Counter(list(due)[:refused])
    assert site.counts("-parking") == (0, 0, 0)
    assert fates == {"handed-over": messages - refused, "rejected": refused}


def test_a_worker_does_not_start_without_its_parking_queue(site: Site) -> None:
    """Nothing would hand over what fires."""
    site.sqs.delete_queue(QueueUrl=site.url("-parking"))
    with pytest.raises(QueueMissing, match="orders-parking"):
        DelayConsumer("orders", site.sqs, store=site.store).start()
