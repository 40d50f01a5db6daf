"""Processes forked after the first use, as gunicorn --preload, Celery's prefork pool and uWSGI fork them.

Each program forks for real, in a process of its own with a time limit; parent and children then use what
was made before the fork at the same time.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import boto3
import pytest

from sqsdelay.stores import open_store
from sqsdelay.testing import LocalAws
from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import ended

EACH = 30
NAMES = ("parent", "child-0", "child-1")

FORKING = f"""
import os, sys
def work(name):
    for n in range({EACH}):
        use(f"{{name}}-{{n}}")
use("before")
children = []
for number in range(2):
    child = os.fork()
    if not child:
        try:
            work(f"child-{{number}}")
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
work("parent")
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def expected() -> Counter[str]:
    return Counter(["before", *(f"{name}-{n}" for name in NAMES for n in range(EACH))])


def run(setup: str, **environment: str) -> None:
    program = [sys.executable, "-W", "error", "-c", setup + FORKING]
    done = ended(program, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


PUBLISHING = """
import asyncio, os
from sqsdelay.rabbitmq import AsyncRabbitMqSender, RabbitMqSender
sender = RabbitMqSender(os.environ["URL"])
together = AsyncRabbitMqSender(sender, linger_ms=1)
"""


@pytest.mark.parametrize(
    "send",
    ["sender.send('orders', text, delay=1)", "asyncio.run(together.send('orders', text))"],
    ids=["threads", "asyncio"],
)
def test_a_rabbitmq_sender(shared: Broker, send: str) -> None:
    """Each process has a publishing thread, a connection and an event loop of its own."""
    shared.ready("orders")
    run(f"{PUBLISHING}def use(text): {send}\n", URL=shared.url)
    assert shared.wait_count("orders", len(expected())) == len(expected())
    assert Counter(body.decode() for _, _, body in shared.drain("orders")) == expected()


def test_a_closed_rabbitmq_sender_stays_closed(broker: Broker) -> None:
    """And a child's closing does not end its parent's connection."""
    broker.queue("orders")
    program = """
import os, sys
from sqsdelay.errors import ConfigurationError
from sqsdelay.rabbitmq import RabbitMqSender
closed = RabbitMqSender(os.environ["URL"])
closed.send("orders", "1")
closed.close()
with RabbitMqSender(os.environ["URL"]) as sender:
    sender.send("orders", "2")
    child = os.fork()
    if not child:
        sender.send("orders", "3")
        sender.close()
        try:
            closed.send("orders", "never")
        except ConfigurationError:
            os._exit(0)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    sender.send("orders", "4")
sys.exit(status != 0)
"""
    done = ended([sys.executable, "-c", program], env={**os.environ, "URL": broker.url})
    assert done.returncode == 0, done.stderr
    assert [body for _, _, body in broker.drain("orders")] == [b"1", b"2", b"3", b"4"]


def test_an_sqs_sender_of_its_own_client(local_aws: LocalAws) -> None:
    """Two processes on one HTTP connection read each other's answers."""
    sqs = boto3.client("sqs", endpoint_url=local_aws.endpoint_url)
    url = sqs.create_queue(QueueName="forked")["QueueUrl"]
    run(
        "from sqsdelay import DelaySender\n"
        "sender = DelaySender()\n"
        "def use(text):\n"
        "    result = sender.send('forked', text)\n"
        "    assert result.error is None\n",
        AWS_ENDPOINT_URL=local_aws.endpoint_url,
    )
    found: Counter[str] = Counter()
    while found.total() < expected().total():
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        assert messages.get("Messages"), found
        found.update(message["Body"] for message in messages["Messages"])
    assert found == expected()


STORING = """
import os
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.stores import open_store
store = open_store(os.environ["STORE"], endpoint="forked")
store.set_up()
def use(text):
    store.store([StoredMessage(message_id=text, destination="forked", due_ms=1, body=b"")])
    assert store.pending_count() >= 1
"""


@pytest.mark.parametrize("vendor", ["sqlite", "postgres"])
def test_a_store(vendor: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """SQLite forbids an inherited connection; PostgreSQL's would carry two processes' queries."""
    file = f"sqlite:///{tmp_path}/forked.db"
    url = file if vendor == "sqlite" else request.getfixturevalue("postgres")
    run(STORING, STORE=url)
    store = open_store(url, endpoint="forked")
    try:
        assert store.pending_count() == expected().total()
    finally:
        store.close()
