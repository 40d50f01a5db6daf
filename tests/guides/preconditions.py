"""What a page takes for granted at one of its blocks, and what is to be seen after another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Final

import pytest

from sqsdelay.core.delay import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DELAY_SECONDS, string
from sqsdelay.core.rejection import rejected
from sqsdelay.sending.sizes import PAYLOAD_SIZE, Pointer
from sqsdelay.sqs import SqsQueues
from sqsdelay.stores import open_store
from tests.acceptance.rabbitmq.broker import Broker
from tests.guides.page import ROOT, Block, runnable
from tests.guides.reader import Reader, empty
from tests.messages import a_copy
from tests.services.endpoints import create_endpoint

Step = Callable[[Reader, pytest.FixtureRequest], None]


def orders(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The endpoint of nearly every page."""
    create_endpoint(reader.aws.client("sqs"), "orders")


def orders_only(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The same, where the page had another kind of endpoint before."""
    empty(reader.aws)
    orders(reader, request)


def an_empty_account(reader: Reader, request: pytest.FixtureRequest) -> None:
    """What the page makes there cannot stand beside what it had."""
    reader.stop()
    empty(reader.aws)


def a_fifo_endpoint(reader: Reader, request: pytest.FixtureRequest) -> None:
    """`orders` and `orders.fifo` cannot be endpoints of one account."""
    empty(reader.aws)
    create_endpoint(reader.aws.client("sqs"), "orders.fifo")


def the_deployed_table(reader: Reader, request: pytest.FixtureRequest) -> None:
    """What `cdk deploy -c store=dynamodb` makes."""
    with closing(open_store("dynamodb://orders.parked", endpoint="orders")) as store:
        store.set_up()


def a_bucket_and_a_file(reader: Reader, request: pytest.FixtureRequest) -> None:
    """A bucket, whatever the page calls it, and a file of large messages."""
    orders_only(reader, request)
    reader.aws.client("s3").create_bucket(Bucket="my-bodies")
    reader.replaced["--bucket NAME"] = "--bucket my-bodies"
    line = json.dumps({"body": "x" * 2_000_000})
    (reader.folder / "large.jsonl").write_text(line + "\n")


def a_received_pointer(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The message a receiver without our library gets: the first one the page has sent."""
    kept = reader.aws.client("s3").list_objects_v2(Bucket="my-bodies")["Contents"]
    oldest = min(kept, key=lambda each: each["LastModified"])
    reader.names["message"] = {
        "Body": Pointer("my-bodies", oldest["Key"]).to_body(),
        "MessageAttributes": {PAYLOAD_SIZE: string("2000000")},
    }


def the_body_is_read_and_gone(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Whole, and deleted from the bucket."""
    assert reader.names["body"] == "x" * 2_000_000
    kept = reader.aws.client("s3").list_objects_v2(Bucket="my-bodies").get("Contents", [])
    key = json.loads(reader.names["message"]["Body"])[1]["s3Key"]
    assert key not in {each["Key"] for each in kept}


def an_error_with_its_remedy(reader: Reader, request: pytest.FixtureRequest) -> None:
    """As the block's comments say."""
    printed = reader.printed[2]
    assert "queue other-delay.fifo does not exist" in printed
    assert "sqsdelay endpoint create other" in printed
    assert "DelayQueueMissing(" in printed


def the_table_it_shows(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The page's first command prints the table below it."""
    printed = next(iter(reader.printed.values())).splitlines()
    assert "\n".join(line.rstrip() for line in printed) in (ROOT / "docs/cost.md").read_text()


def nothing_else_dispatches(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The page has a dispatcher in this process now."""
    reader.stop()


def the_message_is_stored(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The one that the block delivers later."""
    reader.names["outbox"].close()
    assert [m.message_id for m in reader.names["store"].pending(10)] == ["order-7"]


def an_effect_exactly_once(reader: Reader, request: pytest.FixtureRequest) -> None:
    """What is released is a row of the user's own table."""
    store, dispatcher = reader.names["store"], reader.names["dispatcher"]
    for table in ("reminders (id)", "problems (id, reason)"):
        store._connection.execute(f"CREATE TABLE {table}")
    store.reschedule("order-7", 0)
    dispatcher.start()
    dispatcher.dispatch()
    assert store._connection.execute("SELECT id FROM reminders").fetchall() == [("order-7",)]
    assert store.pending_count() == 0


def rejected_messages(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Two messages in the error queue."""
    queues = SqsQueues(reader.aws.client("sqs"))
    url = queues.url(Endpoint.parse("orders").error_queue)
    for message_id in ("order-7", "order-8"):
        copy = a_copy(
            {DELAY_SECONDS: string("5000")},
            body="hello",
            sent_ms=SystemClock().now_ms(),
            group_id=message_id,
        )
        queues.send_batch(url, [rejected(copy, "SQS refused it")])


def a_postgres(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The endpoint, and a PostgreSQL in place of the one the page names."""
    orders(reader, request)
    reader.replaced["postgresql://user@host/db"] = request.getfixturevalue("postgres")


def a_store_in_a_file(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The store the page's sender parks in."""
    with closing(open_store(reader.names["url"], endpoint="orders")) as store:
        store.set_up()


def a_parked_message(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Waiting in the store of the command line."""
    given = ("--body", "x", "--delay", "30d", "--message-id", "order-7")
    assert reader.run("send", "orders", "--store-only", *given)[0] == 0


def a_message_of_the_stores_page(reader: Reader, request: pytest.FixtureRequest) -> None:
    """And its store, which this page takes over."""
    orders(reader, request)
    (stored,) = [b for b in runnable("docs/stores.md") if b.language == "python"]
    reader.read(stored)


def a_broker(reader: Reader, request: pytest.FixtureRequest) -> None:
    """A RabbitMQ in place of the local one the page names, with the queues it speaks of."""
    broker: Broker = request.getfixturevalue("broker")
    for queue in ("orders", "eu.orders"):
        broker.queue(queue)
    orders(reader, request)
    reader.replaced["amqp://guest:guest@localhost:5672/%2f"] = broker.url


BEFORE: Final[dict[tuple[str, int], Step]] = {
    ("README.md", 0): orders,
    ("docs/benchmarks.md", 0): orders,
    ("docs/boto3.md", 0): orders,
    ("docs/deploy.md", 0): orders,
    ("docs/deploy.md", 4): the_deployed_table,
    ("docs/deploy.md", 5): a_fifo_endpoint,
    ("docs/deploy.md", 6): a_bucket_and_a_file,
    ("docs/operations.md", 0): orders,
    ("docs/operations.md", 2): rejected_messages,
    ("docs/opentelemetry.md", 0): orders,
    ("docs/parking.md", 0): a_postgres,
    ("docs/parking.md", 2): a_store_in_a_file,
    ("docs/parking.md", 3): a_parked_message,
    ("docs/rabbitmq-stores.md", 0): a_broker,
    ("docs/rabbitmq.md", 0): a_broker,
    ("docs/sending.md", 1): orders,
    ("docs/receiving.md", 3): a_bucket_and_a_file,
    ("docs/receiving.md", 5): a_received_pointer,
    ("docs/sending.md", 2): an_empty_account,
    ("docs/stores.md", 2): nothing_else_dispatches,
    ("docs/timeout-manager.md", 0): a_broker,
    ("docs/workers.md", 0): a_message_of_the_stores_page,
}
"""Before a block of a page, by page and number of the block."""

AFTER: Final[dict[tuple[str, int], Step]] = {
    ("docs/boto3.md", 2): an_error_with_its_remedy,
    ("docs/cost.md", 0): the_table_it_shows,
    ("docs/receiving.md", 5): the_body_is_read_and_gone,
    ("docs/workers.md", 0): the_message_is_stored,
    ("docs/workers.md", 1): an_effect_exactly_once,
}
"""After one."""


def read(blocks: Iterable[Block], reader: Reader, request: pytest.FixtureRequest) -> None:
    """As a reader would type them, each with what comes before it and after it."""
    for block in blocks:
        place = (block.page, block.number)
        if place in BEFORE:
            BEFORE[place](reader, request)
        reader.read(block)
        if place in AFTER:
            AFTER[place](reader, request)
