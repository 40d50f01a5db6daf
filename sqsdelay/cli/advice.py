"""Errors speak of Python's arguments; who typed a command is told of its options."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from sqsdelay.errors import (
    InvalidDelay,
    InvalidEndpoint,
    InvalidMessage,
    InvalidSetting,
    MessageConflict,
    SqsDelayError,
)

EXIT_REFUSED: Final = 1
"""Understood, and not done: a queue is missing, SQS refused it, nobody answered."""

EXIT_BAD_VALUE: Final = 2
"""Nothing was begun: the value of an option or argument cannot be used. What a shell's commands give."""

OPTIONS: Final = {
    "announce_again_seconds": "--announce-again",
    "attributes": "--attribute",
    "batch": "--batch",
    "batch_size": "--batch",
    "concurrency": "--concurrency",
    "delay": "--delay",
    "dispatch_breaker_seconds": "--dispatch-breaker",
    "due_at": "--due-at",
    "fetch_breaker_seconds": "--fetch-breaker",
    "hop_seconds": "--hop",
    "http": "--http",
    "max_delay_seconds": "--max-delay",
    "max_receives": "--max-receives",
    "maximum_recovery_failures_per_second": "--recovery-failures",
    "message_bytes": "--size",
    "message_group_id": "--group",
    "message_id": "--message-id",
    "messages": "--messages",
    "number_of_retries": "--retries",
    "outage_seconds": "--outage",
    "park_after_seconds": "--park-after",
    "poll_seconds": "--poll",
    "receivers": "--receivers",
    "region_name": "--region",
    "release_ahead_seconds": "--release-ahead",
    "visibility_seconds": "--visibility",
    "wait_seconds": "--wait",
}
"""An argument in Python, and the option that sets it."""

_PHRASES: Final = {
    " (set_up())": "",
    "DelaySender(large_bodies=Bucket(…))": "--bucket NAME",
    "set AWS_DEFAULT_REGION and AWS_PROFILE": "give --region and --profile before the command, or "
    "set AWS_DEFAULT_REGION and AWS_PROFILE",
    "a due_at in the past": "a --due-at in the past",
    "give its due time as due_at": "give its due time as --due-at",
    "give a store,": "give --store URL,",
    "give a timedelta or seconds": "give seconds (90) or 32m5s",
    "give RabbitMqSender(max_message_bytes=…)": "send it with RabbitMqSender in Python",
    "RabbitMqOutbox(max_message_bytes=…)": "dispatch with RabbitMqOutbox in Python",
}
_REGION: Final = re.compile(r"boto3\.client\('sqs', region_name='([^']*)'\)")
_ARGUMENT: Final = re.compile(rf"\b({'|'.join(OPTIONS)})=")
_SPARK_OPTION: Final = re.compile(
    r"\.?option\('(?P<named>\w+)', '?(?P<value>[^')]*)'?\)|\boption (?P<given>\w+)="
)
_TIMEDELTA: Final = re.compile(r"datetime\.timedelta\(([^)]*)\)")


def exit_code(error: SqsDelayError) -> int:
    """1 for what was refused, 2 for a value that cannot be used, whoever found that out."""
    if isinstance(error, MessageConflict):
        return EXIT_REFUSED
    bad = isinstance(error, InvalidDelay | InvalidEndpoint | InvalidMessage | InvalidSetting)
    return EXIT_BAD_VALUE if bad else EXIT_REFUSED


def in_options(text: str) -> str:
    """An error's text, in the words of the command line."""
    for phrase, option in _PHRASES.items():
        text = text.replace(phrase, option)
    text = _REGION.sub(r"sqsdelay --region \1", text)
    text = _TIMEDELTA.sub(_seconds, text)
    text = _SPARK_OPTION.sub(_flag, text)
    return _ARGUMENT.sub(lambda found: f"{OPTIONS[found[1]]} ", text)


def _flag(found: re.Match[str]) -> str:
    """An option of Spark's data source, as the option of `sqsdelay pipeline`."""
    name = found["named"] or found["given"]
    flag = OPTIONS.get(name, f"--{name.replace('_', '-')}")
    if found["named"] is None:
        return f"{flag} "
    gap = " " if found[0].startswith(".") else ""
    return f"{gap}{flag}" if found["value"] == "…" else f"{gap}{flag} {found['value']}"


def _seconds(found: re.Match[str]) -> str:
    """Python's spelling of a duration, in seconds."""
    given = {
        name.strip(): int(value)
        for name, _, value in (part.partition("=") for part in found[1].split(",") if "=" in part)
    }
    return f"{timedelta(**given).total_seconds():g} s"
