"""What Celery's transport sends for a task that is due later, without a worker."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from celery import Celery, signals, signature
from celery.app.trace import build_tracer
from celery.utils.time import maybe_make_aware
from kombu import Queue, pools
from kombu.exceptions import OperationalError

from sqsdelay import DelayConsumer, DelaySender
from sqsdelay.celery import Channel
from sqsdelay.core.message import DUE_AT, MESSAGE_ID
from sqsdelay.errors import ConfigurationError, DelayQueueMissing, InvalidDelay, QueueUnavailable
from sqsdelay.relaying.outcomes import Status
from sqsdelay.stores.sqlite.sqlite_store import SqliteStore
from sqsdelay.testing.local_aws import LocalAws
from tests.services.endpoints import create_endpoint, in_queue
from tests.services.network import TcpProxy

HOUR = 3600


class Site:
    """A Celery app on the local SQS, and a look into its queues."""

    def __init__(self, local_aws: LocalAws, port: int = 0) -> None:
        self.sqs = local_aws.client("sqs")
        self.name = f"tasks-{uuid.uuid4().hex[:8]}"
        broker = f"sqs://test:test@127.0.0.1:{port or local_aws.port}"
        self.app = Celery(self.name, broker=broker, set_as_current=False)
        self.app.conf.update(
            broker_transport="sqsdelay.celery:Transport",
            broker_transport_options={"region": "us-east-1"},
            task_default_queue=self.name,
        )

    def options(self, **options: Any) -> None:
        self.app.conf.broker_transport_options |= options

    def send(self, task: str, **options: Any) -> Any:
        return self.app.send_task(task, **options)

    def endpoint(self, name: str | None = None, *, hop: int = 1) -> str:
        name = name or self.name
        self.options(hop_seconds=hop)
        create_endpoint(self.sqs, name, hop_seconds=hop)
        return name

    def url(self, queue: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=queue)["QueueUrl"])

    def receive(self, queue: str, *, wait: int = 20) -> list[dict[str, Any]]:
        return in_queue(self.sqs, queue, wait=wait)

    def delayed(self, queue: str | None = None) -> dict[str, Any]:
        """The one message in a queue's delay queue."""
        (message,) = self.receive(f"{(queue or self.name).removesuffix('.fifo')}-delay.fifo")
        return message


@pytest.fixture
def site(local_aws: LocalAws) -> Iterator[Site]:
    site = Site(local_aws)
    yield site
    site.app.close()


def attribute(message: dict[str, Any], name: str) -> str:
    return str(message["MessageAttributes"][name]["StringValue"])


def envelope(message: dict[str, Any]) -> dict[str, Any]:
    """kombu's envelope, without the tag of each send and the address of each app."""
    content: dict[str, Any] = json.loads(base64.b64decode(message["Body"]))
    del content["properties"]["delivery_tag"], content["properties"]["reply_to"]
    return content


def refusing(code: str, queue: str) -> Callable[..., Any]:
    """kombu's way to make a client, for one that is answered 403 when it asks for a queue's URL."""
    make = Channel.new_sqs_client
    answered = {
        "HTTPStatusCode": 403,
        "HTTPHeaders": {"date": format_datetime(datetime.now(UTC), usegmt=True)},
        "RequestId": "r-1",
    }
    refusal = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": answered}

    def refuse(params: dict[str, Any], **_: Any) -> Any:
        asked = json.loads(params["body"]).get("QueueName")
        return (SimpleNamespace(status_code=403), refusal) if asked == queue else None

    def make_refused(self: Channel, *arguments: Any, **options: Any) -> Any:
        client = make(self, *arguments, **options)
        client.meta.events.register("before-call.sqs", refuse)
        return client

    return make_refused


def test_the_message_is_the_one_kombu_would_have_sent(site: Site) -> None:
    """Same envelope, same attributes; only the queue differs, and when it comes."""
    site.endpoint()
    call: dict[str, Any] = {
        "args": (1, "zwei \N{SNOWMAN}"),
        "kwargs": {"three": [3]},
        "task_id": f"task-{uuid.uuid4()}",
        "eta": datetime.now(UTC) + timedelta(hours=1),
        "message_attributes": {"Tenant": {"DataType": "String", "StringValue": "7"}},
        "origin": "here",
    }
    site.send("shop.remind", **call)
    ours = site.delayed()
    plain = Celery("plain", broker=site.app.conf.broker_url, set_as_current=False)
    plain.conf.update(
        broker_transport_options={"region": "us-east-1"}, task_default_queue=site.name
    )
    plain.send_task("shop.remind", **call)
    plain.close()
    (theirs,) = site.receive(site.name)
    assert envelope(ours) == envelope(theirs)
    assert envelope(ours)["headers"]["eta"] == call["eta"].isoformat()
    assert attribute(ours, "Tenant") == attribute(theirs, "Tenant") == "7"
    assert int(attribute(ours, DUE_AT)) == -(-int(call["eta"].timestamp() * 1_000_000) // 1000)


def test_a_task_without_delay_is_left_to_kombu(site: Site) -> None:
    """No eta, one in the past, one nobody can read, or protocol 1: sent as before, without our id."""
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    calls = [(2, None), (2, in_an_hour - timedelta(days=1)), (2, "tomorrow"), (1, in_an_hour)]
    for protocol, eta in calls:
        site.app.conf.task_protocol = protocol
        site.app.amqp.__dict__.pop("create_task_message", None)  # made once for a protocol
        site.send("t", eta=eta)
        (message,) = site.receive(site.name)
        assert "MessageAttributes" not in message


def test_a_short_delay_is_a_message_timer(site: Site) -> None:
    """No delay queue is needed, and no receive sees the message before it is due."""
    site.options(hop_seconds=10)
    site.send("t", countdown=2, task_id="soon")
    (message,) = site.receive(site.name)
    assert attribute(message, MESSAGE_ID) == "soon"
    assert envelope(message)["headers"]["eta"] <= datetime.now(UTC).isoformat()


def test_the_queue_is_the_one_the_task_is_routed_to(site: Site) -> None:
    """Routes, queues with an exchange of their own, and kombu's prefix lead to the delay queue beside."""
    mail = site.endpoint(f"eu-mail-{site.name}")
    site.options(queue_name_prefix="eu-")
    site.app.conf.task_queues = [Queue(f"mail.{site.name}", routing_key="post")]
    site.app.conf.task_routes = {"shop.*": {"queue": f"mail.{site.name}"}}
    site.send("shop.remind", countdown=HOUR)
    assert envelope(site.delayed(mail))["headers"]["task"] == "shop.remind"


def test_a_predefined_queue_is_known_by_its_url(site: Site) -> None:
    """The queue's name in the URL counts, not the one Celery calls it by; nothing is created."""
    real = site.endpoint()
    site.options(predefined_queues={"nick": {"url": site.url(real)}})
    site.app.conf.task_default_queue = "nick"
    site.send("t", countdown=HOUR)
    assert envelope(site.delayed(real))["properties"]["delivery_info"]["routing_key"] == "nick"


def test_a_predefined_queues_url_need_not_be_asked_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kombu needs no GetQueueUrl there, and nor does a short countdown here."""
    site.sqs.create_queue(QueueName=site.name)
    site.options(predefined_queues={site.name: {"url": site.url(site.name)}})
    monkeypatch.setattr(Channel, "new_sqs_client", refusing("AccessDenied", site.name))
    pools.reset()
    site.send("t", countdown=600)
    pools.reset()
    answer = site.sqs.get_queue_attributes(QueueUrl=site.url(site.name), AttributeNames=["All"])
    assert answer["Attributes"]["ApproximateNumberOfMessagesDelayed"] == "1"


def test_a_fifo_queue_keeps_its_groups(site: Site) -> None:
    """Group and deduplication id reach the FIFO queue; a short delay goes through the due queue."""
    name = site.endpoint(f"{site.name}.fifo", hop=3)
    site.app.conf.task_default_queue = name
    ids = {"MessageGroupId": "customer-7", "MessageDeduplicationId": "once"}
    site.send("t", countdown=HOUR, **ids)
    site.send("t", countdown=2, **ids)
    (short,) = site.receive(f"{site.name}-due")
    for message in (site.delayed(name), short):
        assert attribute(message, "sqsdelay.MessageGroupId") == "customer-7"
        assert attribute(message, "sqsdelay.MessageDeduplicationId") == "once"


def test_a_body_without_base64_stays_plain(site: Site) -> None:
    """kombu's own encoding option holds for delayed tasks, too."""
    site.endpoint()
    site.options(sqs_base64_encoding=False)
    site.send("t", countdown=HOUR)
    assert json.loads(site.delayed()["Body"])["headers"]["task"] == "t"


def test_ids_tell_retries_apart(site: Site) -> None:
    """The task's id, and for a retry its number: SQS must not take a retry for the task again."""
    site.endpoint()
    for retries in (0, 1, 2):
        site.send("t", countdown=HOUR, task_id="task-7", retries=retries)
    site.send("t", countdown=HOUR, task_id="an id SQS would refuse")
    messages: list[dict[str, Any]] = []
    while len(messages) < 4:
        messages += site.receive(f"{site.name}-delay.fifo")
    ids = {message["Attributes"]["MessageGroupId"] for message in messages}
    assert {"task-7", "task-7.1", "task-7.2"} < ids
    assert len(ids) == 4


def test_an_eta_without_time_zone_is_the_apps(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as the worker reads it: in the time zone of the current app."""
    site.endpoint()
    site.app.conf.update(timezone="Asia/Tokyo")
    monkeypatch.setattr("sqsdelay.celery.current_app", site.app)
    eta = datetime.now() + timedelta(hours=30)  # noqa: DTZ005 - the case tested
    site.send("t", eta=eta)
    expected = maybe_make_aware(eta, site.app.timezone).timestamp()
    assert int(attribute(site.delayed(), DUE_AT)) / 1000 == pytest.approx(expected, abs=0.001)


def test_signals_fire_once(site: Site) -> None:
    """`before_task_publish` and `after_task_publish` see a delayed task like any other."""
    site.endpoint()
    seen: list[tuple[str, Any]] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["tenant"] = 7
        seen.append(("before", headers["id"]))

    def after(headers: dict[str, Any], **_: Any) -> None:
        seen.append(("after", headers["id"]))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        result = site.send("t", countdown=HOUR)
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert seen == [("before", result.id), ("after", result.id)]
    assert envelope(site.delayed())["headers"]["tenant"] == 7


def test_a_missing_delay_queue_is_said_at_once(site: Site) -> None:
    """Not tried again, not sent without its delay: the caller learns what to create."""
    with pytest.raises(DelayQueueMissing, match=f"sqsdelay endpoint create {site.name}"):
        site.send("t", countdown=HOUR)
    assert site.receive(site.name, wait=0) == []


def test_a_retry_is_not_lost_for_a_missing_delay_queue(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Celery would drop the task if its retry could not be sent: it goes as without sqsdelay."""
    tenant = {"Tenant": {"DataType": "String", "StringValue": "7"}}
    site.send("t", countdown=HOUR, retries=1, task_id="task-7", message_attributes=tenant)
    (message,) = site.receive(site.name)
    assert attribute(message, "Tenant") == "7"
    assert envelope(message)["headers"]["eta"] > datetime.now(UTC).isoformat()
    assert "a retry of task task-7 waits in a worker: queue" in caplog.text
    assert "sqsdelay endpoint create" in caplog.text


@pytest.mark.parametrize("code", ["AccessDenied", "RequestThrottled"])
def test_a_retry_is_not_lost_where_sqs_refuses(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    """A worker without permission on the delay queue, or throttled there: the task is held, not dropped."""
    site.endpoint()
    refuse = refusing(code, f"{site.name}-delay.fifo")
    monkeypatch.setattr(Channel, "new_sqs_client", refuse)
    pools.reset()  # they keep connections, with their clients, from one app to the next
    with pytest.raises(OperationalError, match=code):
        site.send("t", countdown=HOUR, task_id="first")
    site.send("t", countdown=HOUR, task_id="task-7", retries=1)
    (message,) = site.receive(site.name)
    assert envelope(message)["headers"]["id"] == "task-7"
    assert "a retry of task task-7 waits in a worker" in caplog.text
    pools.reset()


def losing_its_first_answer() -> Callable[..., Any]:
    """kombu's way to make a client, where SQS takes the first message but its answer is lost."""
    make, lost = Channel.new_sqs_client, threading.Event()

    def lose(**_: Any) -> None:
        if not lost.is_set():
            lost.set()
            raise ConnectionClosedError(endpoint_url="http://sqs")

    def make_losing(self: Channel, *arguments: Any, **options: Any) -> Any:
        client = make(self, *arguments, **options)
        client.meta.events.register("after-call.sqs.SendMessage", lose)
        return client

    return make_losing


def test_what_kombu_publishes_again_is_one_message(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kombu tries once more over a new connection, with another tag: SQS knows it for the same."""
    site.endpoint()
    monkeypatch.setattr(Channel, "new_sqs_client", losing_its_first_answer())
    pools.reset()
    site.send("t", countdown=HOUR, task_id="task-7")
    pools.reset()
    queue = f"{site.name}-delay.fifo"
    (message,) = site.receive(queue)
    site.sqs.delete_message(QueueUrl=site.url(queue), ReceiptHandle=message["ReceiptHandle"])
    assert site.receive(queue, wait=2) == []


def test_a_task_sent_again_later_is_another_message(site: Site) -> None:
    """The id of a task that was revoked may be used again: its countdown ends at another time."""
    site.endpoint()
    for _ in range(2):
        site.send("t", countdown=HOUR, task_id="task-7")
        message = site.delayed()
        site.sqs.delete_message(
            QueueUrl=site.url(f"{site.name}-delay.fifo"), ReceiptHandle=message["ReceiptHandle"]
        )


TEN_YEARS = 315_360_000


@pytest.mark.parametrize("limit", [None, 7200])
def test_a_task_beyond_the_limit_is_refused(
    site: Site, caplog: pytest.LogCaptureFixture, limit: int | None
) -> None:
    """The delay consumer would reject it; the caller learns it now. A retry is not lost for it."""
    site.endpoint()
    if limit is not None:
        site.options(max_delay_seconds=limit)
    farthest = limit or TEN_YEARS
    site.send("t", countdown=farthest - 5)
    assert attribute(site.delayed(), DUE_AT)
    refused = f"this endpoint allows delays of up to {farthest} s"
    with pytest.raises(InvalidDelay, match=refused):
        site.send("t", countdown=farthest + 60)
    assert site.receive(site.name, wait=0) == []
    site.send("t", countdown=farthest + 60, retries=1)
    assert len(site.receive(site.name)) == 1
    assert any(refused in each for each in caplog.messages)


@pytest.mark.parametrize("limit", [899, "1h", None, True])
def test_a_limit_that_is_none_is_refused(site: Site, limit: Any) -> None:
    """Where tasks are sent, with the range; not when a task fails years later."""
    site.endpoint()
    site.options(max_delay_seconds=limit)
    with pytest.raises(ConfigurationError, match=f"max_delay_seconds={limit!r}; use 900 "):
        site.send("t", countdown=HOUR)


def test_another_senders_eta_header_is_left_to_kombu(site: Site) -> None:
    """Not every message of kombu's is a Celery task: what is no time goes as it did."""
    site.sqs.create_queue(QueueName=site.name)
    with site.app.connection_for_write() as connection:
        connection.Producer().publish({}, routing_key=site.name, headers={"eta": 1_700_000_000})
    (message,) = site.receive(site.name)
    assert json.loads(base64.b64decode(message["Body"]))["headers"] == {"eta": 1_700_000_000}


def test_the_task_before_a_link_that_cannot_be_sent_fails(site: Site) -> None:
    """The worker sends a chain's next link: that there is no delay queue is told as this task's error."""
    site.app.conf.update(result_backend="cache+memory://")

    def first() -> int:
        return 1

    task: Any = site.app.task(name="shop.first")(first)
    second = signature("shop.second", immutable=True, app=site.app)
    link = dict(second.set(countdown=HOUR, task_id="second"))
    run: Any = build_tracer(task.name, task, app=site.app)
    request = {"id": "first", "chain": [link], "delivery_info": {}, "retries": 0}
    with pytest.warns(RuntimeWarning, match="DelayQueueMissing"):
        run("first", (), {}, request=request)
    failed = site.app.AsyncResult("first")
    assert failed.state == "FAILURE"
    assert f"sqsdelay endpoint create {site.name}" in str(failed.result)


def test_an_outage_is_tried_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kombu does it: once more, over a new connection, with everything the message carried."""
    site.endpoint()
    failures = [QueueUnavailable("no route to SQS")]
    send = DelaySender.send

    def flaky(self: DelaySender, *arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return send(self, *arguments, **options)

    monkeypatch.setattr(DelaySender, "send", flaky)
    tenant = {"Tenant": {"DataType": "String", "StringValue": "7"}}
    site.send("t", countdown=HOUR, task_id="late", retries=1, message_attributes=tenant)
    message = site.delayed()
    assert message["Attributes"]["MessageGroupId"] == "late.1"
    assert attribute(message, "Tenant") == "7"


def test_an_outage_that_lasts_is_kombus_error(local_aws: LocalAws) -> None:
    """What the callers of `apply_async` catch already; when SQS is back, the same app sends again."""
    with TcpProxy(local_aws.port) as network:
        site = Site(local_aws, port=network.port)
        site.endpoint()
        site.options(**{"client-config": {"retries": {"max_attempts": 0}}})
        site.send("t", countdown=HOUR, task_id="before")
        network.down()
        with pytest.raises(OperationalError):
            site.send("t", countdown=HOUR, task_id="meanwhile")
        network.up()
        site.send("t", countdown=HOUR, task_id="after")
        site.app.close()
    messages: list[dict[str, Any]] = []
    while len(messages) < 2:
        messages += site.receive(f"{site.name}-delay.fifo")
    assert {m["Attributes"]["MessageGroupId"] for m in messages} == {"before", "after"}


def test_another_broker_of_a_list_is_kombus(site: Site) -> None:
    """A limit of kombu's: it takes the transport of the next URL, not the one that was set."""
    connection = site.app.connection("sqs://one;sqs://two")
    assert connection.transport_cls == "sqsdelay.celery:Transport"
    connection.switch("sqs://two")
    assert connection.transport_cls == "sqs"


def test_a_renewed_client_is_used(site: Site) -> None:
    """kombu makes another client when a role's credentials end; the old one is let go."""
    with site.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        first, second = (channel.new_sqs_client("us-east-1", "k", "s") for _ in range(2))
        sender = channel.sender("q", first)
        assert channel.sender("q", first) is sender
        assert channel.sender("q", second) is not sender


def test_a_waiting_task_can_be_cancelled(site: Site, tmp_path: Path) -> None:
    """With the delay consumer's store its id is enough: the copy in the delay queue is dropped."""
    site.endpoint()
    store = SqliteStore(tmp_path / "store.db", endpoint=site.name)
    store.set_up()
    result = site.send("t", countdown=HOUR)
    DelaySender(site.sqs, store=store, hop_seconds=1).cancel(site.name, result.id)
    consumer = DelayConsumer(site.name, site.sqs, hop_seconds=1, store=store)
    (outcome,) = consumer.poll(wait_seconds=10)
    assert outcome.status is Status.CANCELLED
    store.close()


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (5, 15)),
        ({"wait_time_seconds": 20, "client-config": {"connect_timeout": 2}}, (2, 25)),
    ],
)
def test_kombus_clients_have_limits_of_seconds(
    site: Site, options: dict[str, Any], limits: tuple[int, int]
) -> None:
    """Left to botocore a call is given up after minutes; long polls need their wait and some. What the app
    names by kombu's own option stands."""
    site.options(**options)
    with site.app.connection() as connection:
        channel: Any = connection.default_channel
        config = channel.sqs().meta.config
    assert (config.connect_timeout, config.read_timeout) == limits
    assert config.retries["total_max_attempts"] == 3
