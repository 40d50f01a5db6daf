"""A table that cannot be sent is refused before anything is, naming the column."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from sqsdelay.errors import ConfigurationError, InvalidEndpoint
from sqsdelay.spark.sink.data_source import SqsDelayDataSource
from sqsdelay.spark.sink.options import Options, checked_columns

pytestmark = pytest.mark.usefixtures("spark")  # it reads the types' names

GOOD = "body string, message_id string, delay_seconds long"


def table(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def check(ddl: str, **options: str) -> frozenset[str]:
    parsed = Options.parse({"endpoint": "orders"} | options)
    return checked_columns(table(ddl), parsed).names


@pytest.mark.parametrize(
    "ddl",
    [
        GOOD,
        "body string, message_id string, delay_seconds double",
        "body string, message_id string, due_at timestamp",
        f"{GOOD}, endpoint string, attributes map<string,string>, message_group_id string, "
        "message_deduplication_id string, _corrupt_record string",
    ],
)
def test_a_good_table_is_taken(ddl: str) -> None:
    """All columns of the guide, in their types."""
    assert check(ddl) == frozenset(table(ddl).fieldNames())


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("message_id string, delay_seconds long", "'body' is missing; there are message_id"),
        ("body string, message_id string", "'delay_seconds' and 'due_at' are both missing"),
        (f"{GOOD}, due_at timestamp", "'delay_seconds' and 'due_at' are both there"),
        ("body binary, message_id string, delay_seconds long", "'body' is binary; .* string"),
        ("body string, message_id long, delay_seconds long", "'message_id' is bigint"),
        ("body string, message_id string, delay_seconds string", "'delay_seconds' is string"),
        ("body string, message_id string, delay_seconds decimal(9,3)", "'delay_seconds' is dec"),
        ("body string, message_id string, due_at string", "'due_at' is string; .* timestamp"),
        ("body string, message_id string, due_at date", "'due_at' is date"),
        ("body string, message_id string, due_at timestamp_ntz", "'due_at' is timestamp_ntz"),
        (f"{GOOD}, attributes map<string,int>", "'attributes' is map<string,int>"),
        (f"{GOOD}, attributes struct<a:string>", "'attributes' is struct<a:string>"),
        (f"{GOOD}, endpoint int", "'endpoint' is int"),
        (f"{GOOD}, price double", "'price' is unknown; known are body, .*option key .'price'"),
        (f"{GOOD}, body string", "'body' occurs twice"),
        ("body string, delay_seconds long", "no message id that stays the same"),
    ],
)
def test_a_wrong_table_is_refused(ddl: str, told: str) -> None:
    """With the column, what it is, and what it must be."""
    with pytest.raises(ConfigurationError, match=told):
        check(ddl)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"key": "order_id"}, "give it one: option job"),
        ({"key": "nope", "job": "j"}, "key='nope' names no column"),
        ({"job": "j"}, "'order_id' is unknown"),
    ],
)
def test_a_key_needs_a_job_and_a_column(options: dict[str, str], told: str) -> None:
    """Ids must be the same whenever Spark sends a row again."""
    with pytest.raises(ConfigurationError, match=told):
        check("body string, delay_seconds long, order_id long", **options)


@pytest.mark.parametrize("key", ["order_id double", "order_id array<int>", "reason string"])
def test_a_key_is_text_or_a_whole_number(key: str) -> None:
    """Others have more than one spelling; and the rejects table has a column of its own."""
    with pytest.raises(ConfigurationError, match="the key"):
        check(f"body string, delay_seconds long, {key}", key=key.split()[0], job="j")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endpont": "orders"}, "'endpont' is unknown; known are batch, concurrency"),
        ({"concurrency": "0"}, "concurrency='0'; use a whole number, 1 or"),
        ({"concurrency": "x"}, "concurrency='x'"),
        ({"hop_seconds": "901"}, "hop_seconds=901"),
        ({"max_delay_seconds": "899"}, "max_delay_seconds=899; use 900"),
        ({"endpoint": "orders", "rejects": "dbfs:/x"}, "rejects=.*cannot be used"),
        ({"endpoint": "orders", "rejects": "ftp://h/x"}, "rejects=.*cannot be used"),
        (
            {"endpoint": "o", "rejects": "/dev/null/x"},
            "rejects=.*cannot be used: .*; give a folder",
        ),
        ({"endpoint": "o", "receipts": "r"}, "receipts='.*/r' needs the job's name"),
        ({"endpoint": "o", "receipts": "", "job": "j"}, "receipts='' is empty; give a value, or"),
        ({"endpoint": "o", "summary": "/dev"}, "summary='/dev': .*; give a file"),
        ({"endpoint": "o", "summary": "/dev/null/x"}, "summary='/dev/null/x': "),
        ({"endpoint": "o", "batch": "7"}, "batch=7; name the job .*: option job"),
        ({"endpoint": "o", "rate": "9"}, "rate=9 is the whole job's; give option tasks"),
        ({"endpoint": "o", "past_due": "x"}, "past_due='x'; use send or rej"),
        ({"endpoint": "o", "park_after": "9"}, "park_after=9 needs a store; give option store"),
        ({"endpoint": "o", "plan": "yes"}, "plan='yes'; use true or false"),
        ({"endpoint": "o", "plan": "true"}, "written to the summary"),
        ({"ledger": "s3://bucket/l"}, "ledger='s3://bucket/l' is a URI"),
        ({}, "no endpoint"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], told: str) -> None:
    """A mistyped name is not passed over: without its rejects a job would fail."""
    with pytest.raises(ConfigurationError, match=told):
        SqsDelayDataSource(options).writer(table(GOOD), False)
    with pytest.raises(InvalidEndpoint, match="not a queue name"):
        SqsDelayDataSource({"endpoint": "no queue"}).writer(table(GOOD), False)


def test_names_of_columns_come_in_any_case() -> None:
    """As Spark's do; two that differ only by it are one."""
    assert check("BODY string, Message_Id string, delay_seconds long") == check(GOOD)
    with pytest.raises(ConfigurationError, match="'body' occurs twice"):
        check(f"{GOOD}, Body string")


def test_names_of_options_come_in_any_case() -> None:
    """Spark's options do; the stream's own are passed over, and what a program leaves at None."""
    given = {"HOP_Seconds": 60, "checkpointLocation": "/c", "queryName": "q", "rejects": None}
    parsed = Options.parse(given)
    assert (parsed.hop_seconds, parsed.checkpoint, parsed.rejects) == (60, "/c", None)


def test_sent_messages_are_not_overwritten() -> None:
    """Tables and streams are appended to."""
    source = SqsDelayDataSource({"endpoint": "orders"})
    with pytest.raises(ConfigurationError, match="cannot be overwritten; use mode"):
        source.writer(table(GOOD), True)
    with pytest.raises(ConfigurationError, match="cannot be overwritten"):
        source.streamWriter(table(GOOD), True)
