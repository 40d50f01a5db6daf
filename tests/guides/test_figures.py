"""The pages' figures, names, limits and tables are the code's, where they stand once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import boto3
import pytest
from kombu.transport.SQS import Channel
from moto import mock_aws

from benchmarks import cost_by_delay
from benchmarks.support.blocks import rewritten
from sqsdelay import unrestricted
from sqsdelay.cli.console import EXIT_CRITICAL
from sqsdelay.cli.waiting import EXIT_REQUESTED
from sqsdelay.core import limits
from sqsdelay.core.delay import due_at_ms
from sqsdelay.core.readable import parse_due_at
from sqsdelay.core.stored_message import AMENDMENT_LIFETIME_SECONDS
from sqsdelay.cost import Workload, bill, shipped_prices
from sqsdelay.cost import strategies as rates
from sqsdelay.cost.places import IDLE_READ_UNITS, ITEM_BYTES
from sqsdelay.cost.strategies import due_queue
from sqsdelay.cost.workload import (
    DELAY_ATTRIBUTES_BYTES,
    DISPATCH_MS,
    FUNCTION_MS,
    LAMBDA_POLLERS,
    dollars,
)
from sqsdelay.dispatching import dispatcher as dispatching
from sqsdelay.errors import SchemaMismatch
from sqsdelay.operating.status import parse_cursor
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS
from sqsdelay.ports.stores import DelayedMessageStore
from sqsdelay.rabbitmq import MAX_DELAY_SECONDS
from sqsdelay.sending.sizes import LEGACY_PAYLOAD_SIZE, PAYLOAD_SIZE, Pointer
from sqsdelay.stores import DynamoDbStore
from sqsdelay.stores.postgres.pool import LOCK_SECONDS, SERVER_SETTINGS
from sqsdelay.stores.postgres.postgres_store import POLL_SECONDS, PostgresStore
from sqsdelay.stores.shared import DEFAULT_LEASE_SECONDS, VERSION, check_version
from sqsdelay.stores.sqlite.sqlite_store import RESERVE_BYTES, SqliteStore
from tests.guides.page import ROOT
from tests.services.endpoints import create_endpoint

PRICES = shipped_prices()
TENS, SINGLY = (
    due_queue(Workload(delay_seconds=0, messages=10**6, message_bytes=200, batch=batch), PRICES)
    for batch in (10, 1)
)
"""What a FIFO endpoint's due queue adds."""


def a_million(code: str, messages: int = 10**6) -> float:
    """What a million in a year cost, one by one; as if there were but so many."""
    load = Workload(delay_seconds=365 * 86_400, messages=messages, message_bytes=200)
    return float(bill(code, load, PRICES).for_messages) / messages * 10**6


BY_SENDER = a_million("scheduled-by-sender")


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


KEEPALIVE = {
    name: int(SERVER_SETTINGS[f"tcp_keepalives_{name}"]) for name in ("idle", "interval", "count")
}
GONE = KEEPALIVE["idle"] + KEEPALIVE["interval"] * KEEPALIVE["count"]
DAYS = limits.MAX_RETENTION_SECONDS // 86_400

TOLD = {
    "../README.md": (
        f"a million cost ${a_million('eventbridge-scheduler'):.2f}, and you run nothing",
        f"To the second they cost ${BY_SENDER:.2f} [on its schedules]",
    ),
    "scheduler.md": (f"so that ten are due in five minutes, ${BY_SENDER:.2f}.",),
    "parking.md": (
        f"by default {DEFAULT_PARK_AFTER_SECONDS:,} s",
        f"for {AMENDMENT_LIFETIME_SECONDS // 86_400} days",
        f"| `Change.REQUESTED` | {EXIT_REQUESTED} |",
    ),
    "sending.md": (f"Names may have {limits.MAX_ENDPOINT_CHARS} characters before `.fifo`",),
    "celery.md": (
        f"({Channel.default_visibility_timeout // 60} minutes, unless",
        f"Up to {limits.MAX_MESSAGE_TIMER_SECONDS} s as a message timer",
        f"more than {limits.MAX_ENDPOINT_CHARS} characters",
        {300: "sent within five minutes are one"}[limits.DEDUPLICATION_INTERVAL_SECONDS],
    ),
    "receiving.md": (
        f"expires_after_seconds={DAYS} * 86_400",
        f"known for {DAYS} days",
        Pointer("my-bodies", "…").to_body().replace("\\u2026", "…"),
        PAYLOAD_SIZE,
        LEGACY_PAYLOAD_SIZE,
    ),
    "stores.md": (
        f"`-reserve` ({RESERVE_BYTES >> 20} MiB)",
        f"end {DEFAULT_LEASE_SECONDS:g} s after they are seen",
        f"within {SqliteStore.poll_seconds:g} s",
        f"after the lease ({DEFAULT_LEASE_SECONDS:g} s)",
        f"{limits.MAX_DYNAMODB_ITEM_BYTES // 1024} KiB",
        f"names end at {limits.MAX_POSTGRES_NAME_BYTES} bytes",
        f"asks after {KEEPALIVE['idle']} s and gives up after {GONE} s",
        f"after {GONE} s when its host lost its power",
        f"`tcp_keepidle={KEEPALIVE['idle']}`, `tcp_keepintvl={KEEPALIVE['interval']}` and "
        f"`tcp_keepcnt={KEEPALIVE['count']}`",
        {1: "looks every second"}[int(POLL_SECONDS)],
        f"After {LOCK_SECONDS - 1} s one warning names the session",
        f"after {LOCK_SECONDS} s changes and inserts fail",
    ),
    "workers.md": (
        f"claims up to {dispatching.DEFAULT_BATCH} due messages",
        f"looks every {PostgresStore.poll_seconds:g} s (PostgreSQL)",
        f"{DynamoDbStore.poll_seconds:g} s (DynamoDB)",
        f"{SqliteStore.poll_seconds:g} s (SQLite)",
        f"| {EXIT_CRITICAL} | a circuit breaker",
        f"while something is due | {dispatching.DEFAULT_TRIGGER_SECONDS:g} s |",
        f"in a second than this | {dispatching.DEFAULT_FAILURES_PER_SECOND:g} |",
    ),
    "capacity.md": (
        f"| {rates.RELAYED_ON_TIME:,} | {rates.RELAYED_ON_TIME:,} |",
        f"as deployed) | 4,700 | no limit | {rates.DYNAMODB_ON_TIME:,} |",
        f"as deployed) | 2,000 | no limit | {rates.S3_ON_TIME:,} |",
        f"The deployed function parks {rates.PARKED_A_SECOND} messages a second.",
        f"By default {rates.SCHEDULES_ON_TIME:,} messages due in one second are on",
    ),
    "cost.md": (
        f"the {DELAY_ATTRIBUTES_BYTES} bytes that the delay adds",
        f"an item has {ITEM_BYTES} bytes besides",
        f"{limits.DELAY_CONSUMER_MEMORY_MB} MB (arm64) for {FUNCTION_MS} ms",
        f"{limits.DISPATCHER_MEMORY_MB:,} MB for {FUNCTION_MS} ms a run",
        f"and {DISPATCH_MS} ms for each message",
        f"keeps { {5: 'five'}[LAMBDA_POLLERS] } long polls",
        f"every {limits.SCHEDULE_SECONDS} s, and reads {IDLE_READ_UNITS} units",
        f"read on {PRICES.read_on}",
        f"**${BY_SENDER:.2f} a million one by one, to the second**",
        f"else up to ${a_million('scheduled-by-sender', 1):.2f}",
        f"FIFO: ${float(TENS):.2f} a million in tens, ${float(SINGLY):.2f} singly",
    ),
    "guarantees.md": (
        f"| {limits.MAX_ENDPOINT_CHARS} characters, without `.fifo`",
        f"SQS takes {limits.MAX_QUEUE_NAME_CHARS}, and the longest suffix needs "
        f"{limits.MAX_QUEUE_NAME_CHARS - limits.MAX_ENDPOINT_CHARS}",
        f"8 of SQS's {limits.MAX_ATTRIBUTES}",
        f"{limits.MAX_ID_CHARS} letters, digits and punctuation; "
        f"{limits.MAX_STORED_ID_CHARS} characters",
        f"{limits.MAX_DYNAMODB_ITEM_BYTES // 1024} KiB; a larger one hops on",
        f"{DAYS} days, then SQS drops",
        f"| {limits.MAX_MESSAGE_TIMER_SECONDS} s; none on single messages",
        f"| {limits.MAX_MESSAGE_BYTES:,} bytes |",
        f"| messages in a batch | {limits.MAX_BATCH_ENTRIES} |",
        f"| {limits.DEDUPLICATION_INTERVAL_SECONDS // 60} minutes, also after a delete",
        f"| RabbitMQ | {MAX_DELAY_SECONDS:,} s",
    ),
}


@pytest.mark.parametrize("page", TOLD)
def test_a_page_repeats_the_codes_numbers(page: str) -> None:
    """Defaults and limits stand once in the code."""
    told = " ".join(text(page).split())
    assert [each for each in TOLD[page] if each not in told] == []


def test_defaults_that_pages_give_in_words() -> None:
    """And one that two constants have to agree on."""
    assert dispatching.DispatchSettings().number_of_retries == 0
    assert cost_by_delay.break_even_seconds(PRICES) == DEFAULT_PARK_AFTER_SECONDS
    assert int(SERVER_SETTINGS["tcp_user_timeout"]) == GONE * 1000


def test_so_many_attributes_are_a_boto3_users() -> None:
    """And not one more."""
    told = re.search(
        r"leaves you (\d+) of SQS's (\d+) .*?: (\d+) with .*?, (\d+) to a", text("boto3.md")
    )
    assert told is not None
    plain, most, grouped, fifo = map(int, told.groups())
    assert most == limits.MAX_ATTRIBUTES
    with mock_aws():
        sqs: Any = unrestricted(boto3.client("sqs"))
        for name in ("orders", "payments.fifo"):
            create_endpoint(sqs, name)
        for queue, count, group in (
            ("orders", plain, {}),
            ("orders", grouped, {"MessageGroupId": "g"}),
            ("payments.fifo", fifo, {"MessageGroupId": "g"}),
        ):
            given = {
                "QueueUrl": sqs.get_queue_url(QueueName=queue)["QueueUrl"],
                "MessageBody": "x",
                "DelaySeconds": 86_400,
                **group,
            }
            many = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(count + 1)}
            with pytest.raises(sqs.exceptions.ClientError, match="message attributes"):
                sqs.send_message(**given, MessageAttributes=many)
            del many["a0"]
            sqs.send_message(**given, MessageAttributes=many)


def test_the_stores_pages_cursor_is_one() -> None:
    """The page after the message stored above begins behind its due time and id."""
    due = re.search(r"--due-at (\S+) --message-id order-7", text("stores.md"))
    assert due is not None
    cursor = (due_at_ms(parse_due_at(due[1])), "order-7")
    found = re.findall(r"--after (\d\S+)", text("stores.md"))
    assert [parse_cursor(each) for each in found] == [cursor, cursor]


def test_the_stores_pages_error_is_the_one_that_is_raised() -> None:
    """About a schema's version."""
    with pytest.raises(SchemaMismatch) as raised:
        check_version(VERSION + 1, "orders.delayed")
    assert f"\n{raised.value}\n" in text("stores.md")


def test_the_table_of_a_store_names_every_method() -> None:
    """The table beside NServiceBus's interface is complete."""
    methods = {
        name
        for name in vars(DelayedMessageStore)
        if not name.startswith("_") and name not in ("modes", "poll_seconds", "close")
    }
    table = text("testing.md").partition("`IDelayedMessageStore`")[2].partition("\n## ")[0]
    assert methods <= set(re.findall(r"`([a-z_]+)`", table))


def test_the_tables_by_delay_are_the_scripts() -> None:
    """Nobody types them, and the prices that are shipped are the ones they are made with."""
    guide = text("cost.md")
    for name, made in cost_by_delay.tables(PRICES).items():
        told = rewritten(guide, cost_by_delay.SCRIPT, name, made)
        assert told == guide, f"{name}: run python -m benchmarks.cost_by_delay"


def test_the_comparisons_prices_are_the_cost_commands() -> None:
    """A million messages of 200 bytes for a year, in tens and one by one."""
    told = text("comparison.md")

    def paid(code: str, days: int = 365) -> list[str]:
        load = Workload(delay_seconds=days * 86_400, messages=10**6, message_bytes=200)
        found = [bill(code, replace(load, batch=b), PRICES).for_messages for b in (10, 1)]
        return [f"${dollars(each) if each < 1000 else f'{round(each):,}'}" for each in found]

    for code, row in (
        ("relay", "sqsdelay, hops"),
        ("parked", "sqsdelay, parked"),
        ("eventbridge-scheduler", "EventBridge Scheduler"),
    ):
        (line,) = [line for line in told.splitlines() if line.startswith("| ") and row in line]
        assert line.endswith(f"{' / '.join(paid(code))} |")
    assert f"{paid('formula')[1]} by its documentation" in told
    assert f"{paid('step-functions', days=30)[0]} |" in told
