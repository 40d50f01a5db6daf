"""Hostile values: what one can find in an event, a line or a command, and would rather not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sqsdelay.core.message import (
    DEDUPLICATION_ID,
    DELAY_MS,
    DELAY_SECONDS,
    DUE_AT,
    ERROR,
    GROUP_ID,
    MESSAGE_ID,
)

NUMBERS = (
    "0", "30", "900", "1000", "5000", "-1", "+1", " 1", "1 ", "1\n", "1e3", "1_0", "0x10", "NaN", "inf",
    "٣٠", "1.5", "", "9" * 15, "9" * 16, "9" * 5000, "1800001000000", "253402300799000",
)  # fmt: skip
"""What Python's ``int`` or ``float`` may take for a number, and what only looks like one."""

texts = st.one_of(
    st.sampled_from((*NUMBERS, "orders", "orders.fifo", "[/]", "\ud800", "\x00", "a" * 300)),
    st.text(st.characters(), max_size=30),
)
"""Any characters, lone surrogates included."""

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
"""Anything JSON can hold."""

NAMES = (
    DELAY_SECONDS, DUE_AT, DELAY_MS, GROUP_ID, DEDUPLICATION_ID,
    MESSAGE_ID, ERROR, "ExtendedPayloadSize", "sqsdelay.Destination", "mine",
)  # fmt: skip

attributes = st.fixed_dictionaries(
    {},
    optional={
        "dataType": st.sampled_from(("String", "Number", "Binary", "Binary.gzip", "", "Foo")),
        "stringValue": texts,
        "binaryValue": st.sampled_from(("AAE=", "no base64", "é", "")),
    },
)


def broken(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly as the strategy says, sometimes anything."""
    return st.one_of(strategy, strategy, strategy, values)


records = broken(
    st.fixed_dictionaries(
        {
            "messageId": broken(st.just("s-1")),
            "receiptHandle": broken(st.just("1:1")),
            "body": broken(st.sampled_from(("hello", '{"message_id": "m"}', "[" * 2000))),
            "attributes": broken(
                st.fixed_dictionaries(
                    {
                        "SentTimestamp": broken(st.just("1799999100000")),
                        "ApproximateFirstReceiveTimestamp": broken(st.just("1800000000000")),
                        "ApproximateReceiveCount": broken(st.sampled_from(("1", "2", "5"))),
                        "MessageGroupId": broken(st.just("m-1")),
                        "MessageDeduplicationId": broken(st.just("m-1")),
                    },
                    optional={"AWSTraceHeader": broken(st.just("Root=1;Lineage=a:1"))},
                )
            ),
            "messageAttributes": broken(
                st.dictionaries(st.sampled_from(NAMES), broken(attributes), max_size=10)
            ),
        }
    )
)
"""Records of a Lambda event, mutated."""

lines = broken(
    st.fixed_dictionaries(
        {"body": broken(texts)},
        optional={
            "delay": broken(st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats())),
            "due_at": broken(st.datetimes().map(lambda at: at.isoformat() + "Z")),
            "attributes": broken(st.dictionaries(texts, values, max_size=11)),
            "message_id": broken(st.text("abc[/]!", min_size=1, max_size=130)),
            "message_group_id": broken(st.just("g")),
            "message_deduplication_id": broken(st.just("d")),
            "trace_header": broken(texts),
            "body_repeat": broken(st.integers()),
        },
    )
)
"""Lines of a file of messages, mutated."""
