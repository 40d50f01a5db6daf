"""What the core's refusals say, word by word: the value, the limit and the remedy."""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import sqsdelay
from sqsdelay.cli.console import OneLine
from sqsdelay.core.delay import check_hop, delay_ms, due_at_ms, due_time
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS, MAX_MESSAGE_BYTES
from sqsdelay.core.message import (
    Message,
    attributes_of,
    check_body,
    check_ids,
    check_limits,
    check_trace_header,
)
from sqsdelay.core.readable import parse_delay
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import InvalidMessage, MalformedEvent, SqsDelayError
from sqsdelay.ledger.events import from_json
from sqsdelay.timeouts.sender import due_ms_of, read_id

NUL_REFUSED = (
    "contains the character U+0000 at position 1, which SQS refuses; "
    "encode it (e.g. base64) or send it as a Binary attribute"
)


def attribute(value: Any) -> Callable[[], object]:
    return lambda: attributes_of({"tenant": value})


def stored(**changes: Any) -> Callable[[], object]:
    fields: dict[str, Any] = {"message_id": "a", "destination": "orders", "due_ms": 0, "body": b"x"}
    return lambda: StoredMessage(**(fields | changes))


def ids(fifo: bool, **given: str) -> Callable[[], object]:
    return lambda: check_ids(Message("x", **given), fifo=fifo)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (attribute([7]), "attribute 'tenant' is a list; give text, bytes, a number or boto3's "
         "{'DataType': …} shape"),
        (attribute({"DataType": "Text"}), "attribute 'tenant' has DataType 'Text'; "
         "use String, Number or Binary, optionally with a .custom suffix"),
        (attribute({"DataType": "String", "StringValue": "x", "b": 1, "a": 1}),
         "attribute 'tenant' has a, b; use only DataType and StringValue"),
        (attribute("x\0"), f"attribute 'tenant' {NUL_REFUSED}"),
        (lambda: due_time(1, datetime.now().astimezone()),
         "delay and due_at are both given; give only one"),
        (lambda: check_body(""), "body is empty; SQS requires at least 1 character"),
        (lambda: check_body("x\0"), f"body {NUL_REFUSED}"),
        (lambda: check_trace_header(""), "trace_header='' is not an X-Ray trace header; "
         "give text such as 'Root=1-…', or leave it out"),
        (lambda: check_trace_header(7), "trace_header=7 is not an X-Ray trace header; "  # type: ignore[arg-type]
         "give text such as 'Root=1-…', or leave it out"),
        (lambda: check_trace_header("x\0"), f"trace_header {NUL_REFUSED}"),
        (ids(True), "message_group_id is missing; FIFO queues require one and keep the order "
         "within it"),
        (ids(True, message_group_id="g", message_deduplication_id="a b"),
         "message_deduplication_id='a b' is not valid; use 1 to 128 letters, digits and punctuation"),
        (ids(False, message_deduplication_id="d"), "message_deduplication_id is for FIFO queues; "
         "leave it out: receivers of a standard queue deduplicate on message_id"),
        (lambda: check_limits("x" * MAX_MESSAGE_BYTES, {}, {"a": {"DataType": "b"}}),
         "message of 1048578 bytes (body and attributes in UTF-8, 2 bytes added for the delay); the "
         "limit is 1048576; shorten it, or keep large bodies in S3 (large_bodies=Bucket(…), --bucket)"),
        (stored(destination=""), "destination '' is empty; name a queue"),
        (stored(body="text"), "body is str; a store keeps bytes: encode it, e.g. as UTF-8"),
        (stored(message_id=""), "message_id='' cannot be stored; use 1 to 250 characters "
         "(no NUL, no lone surrogate)"),
        (stored(due_ms=-1), f"due_ms=-1 is outside 0 to {MAX_DUE_MS} (1970 to 9999); "
         "give epoch milliseconds, UTC"),
        (lambda: check_hop(0), "hop_seconds=0; use 1 to 900, "
         "the delay queue's delivery delay"),
        (lambda: delay_ms("1"), "delay='1' is a str; give a timedelta or seconds (int or float)"),  # type: ignore[arg-type]
        (lambda: delay_ms(-(10**18)), "delay is negative; use 0 or more (what was due in the past is "
         "sent at once)"),
        (lambda: delay_ms(10**18), f"delay of more than {MAX_DUE_MS} s ends after the year 9999; "
         "give a shorter delay"),
        (lambda: delay_ms(MAX_DUE_MS), f"delay={MAX_DUE_MS} is longer than {MAX_DUE_MS} ms, which "
         "ends after the year 9999; give a shorter delay"),
        (lambda: due_at_ms("now"), "due_at='now' is a str; give a datetime"),  # type: ignore[arg-type]
        (lambda: due_at_ms(datetime(2027, 1, 31)), "due_at='2027-01-31T00:00:00' has no time zone; "  # noqa: DTZ001
         "give one, e.g. datetime(..., tzinfo=timezone.utc)"),
        (lambda: parse_delay("1y"), "delay '1y' is not valid; use seconds (90), 32m5s (m: minutes), 1d12h, "
         "or ISO 8601 (PT32M5S); for months and years give a due time"),
        (lambda: Endpoint.parse("https://[::1/orders"),
         "endpoint 'https://[::1/orders' is not a queue URL: Invalid IPv6 URL"),
        (lambda: from_json("{}"), 'not a ledger event: it has no "v"'),
    ],
)  # fmt: skip
def test_a_refusal_says(refused: Callable[[], object], told: str) -> None:
    """In full: who is refused should know what to do next."""
    with pytest.raises(SqsDelayError, match=f"^{re.escape(told)}$"):
        refused()


def test_a_number_that_python_will_not_print() -> None:
    """Its attribute is named, beside Python's own words."""
    with pytest.raises(SqsDelayError, match=r"^attribute 'tenant' is too large a number: .*4300"):
        attribute(10**5000)()


def test_what_an_event_must_have() -> None:
    """All the fields, separated by commas."""
    told = "event is missing; every event has event, at_ms, endpoint, message_id, source"
    with pytest.raises(MalformedEvent, match=f"^{told}$"):
        from_json('{"v": 1}')


def test_a_timeouts_due_time_is_shown_to_forty_characters() -> None:
    """Enough to know it by, not all that a stranger sent."""
    digits = "x" * 41
    for name in ("sqsdelay.DueAt", "NServiceBus.Timeout.Expire"):
        with pytest.raises(InvalidMessage, match=f"^{name} is '{'x' * 40}', not "):
            due_ms_of({name: {"DataType": "String", "StringValue": digits}})


def test_an_announcement_that_is_none() -> None:
    """The reason, in full."""
    reason = getattr(read_id("{}"), "reason", None)
    assert reason == 'the body is not {"message_id": "…"}: it was not sent by a timeout manager'


# Whoever may send a message writes ids, destinations and what errors quote: no log line is theirs.

ROOT = Path(sqsdelay.__file__).parent
ROOMS = ("dispatching", "parking", "ports", "relaying", "sending", "sqs", "stores", "timeouts")
STRANGERS = frozenset({"body", "destination", "error", "message_id", "reason"})
"""Names of what is, or quotes, another's text."""


def quoted(path: Path) -> Iterator[str]:
    """The arguments of log calls that are somebody else's words as they came."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "logger":
            continue
        template = ast.unparse(node.args[0])
        for argument in node.args[1:] if "%r" not in template else ():
            name = argument.attr if isinstance(argument, ast.Attribute) else None
            name = argument.id if isinstance(argument, ast.Name) else name
            if name in STRANGERS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(argument)}"


@pytest.mark.parametrize("room", ROOMS)
def test_what_others_wrote_is_logged_on_one_line(room: str) -> None:
    """By ``one_line``, or ``%r``: a library's user has a log format of their own."""
    found = [told for path in sorted((ROOT / room).rglob("*.py")) for told in quoted(path)]
    assert found == []


def test_a_record_is_one_line() -> None:
    """A forged line and an escape are shown as what they are."""
    record = logging.LogRecord("x", 30, "x", 1, "id %s", ("a\n12:00 all is well\x1b[2J",), None)
    assert OneLine("%(message)s").format(record) == "id a\\x0a12:00 all is well\\x1b[2J"


def test_a_traceback_keeps_its_lines_and_no_escapes() -> None:
    """It is ours to be read; what an error quotes is not."""
    try:
        raise ValueError("\x1b[2Jx")
    except ValueError:
        record = logging.LogRecord("x", 40, "x", 1, "broke", (), sys.exc_info())
    shown = OneLine("%(message)s").format(record)
    assert shown.startswith("broke\nTraceback")
    assert "ValueError: \\x1b[2Jx" in shown
    assert "\x1b" not in shown
