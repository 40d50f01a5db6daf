"""Which message a copy belongs to, and when it is due."""

from __future__ import annotations

from dataclasses import dataclass

from sqsdelay.core.hop import Reject
from sqsdelay.core.message import Attribute, text_of
from sqsdelay.core.received_message import ReceivedMessage, whole_number
from sqsdelay.core.wire import DELAY_MS, DELAY_SECONDS, DUE_AT, MADE_HERE
from sqsdelay.limits import CONTRADICTION_MS, MAX_DUE_MS, SQS_LAUNCH_MS


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """What a readable copy says: which message it is and when it is due."""

    message_id: str
    due_ms: int


def read_delay(copy: ReceivedMessage) -> DelayedMessage | Reject:
    """When the message is due, or why that is unknown. Never "now" by default."""
    if copy.unreadable is not None:
        return Reject(copy.unreadable)
    delay_seconds = copy.attributes.get(DELAY_SECONDS)
    due_at = copy.attributes.get(DUE_AT)
    if delay_seconds is None:
        return Reject(f"message attribute {DELAY_SECONDS} is missing")
    seconds = whole_number(delay_seconds.get("StringValue"))
    if seconds is None:
        return Reject(f"{DELAY_SECONDS} is {_shown(delay_seconds)}, not a whole number of seconds")
    if copy.sent_ms is None:
        return Reject("SentTimestamp is missing, so the start of the delay is unknown")
    if due_at is None or copy.sent_by_nservicebus:
        due_ms = copy.sent_ms + _exact_ms(copy, seconds)
    else:
        absolute = whole_number(due_at.get("StringValue"))
        if absolute is None:
            return Reject(f"{DUE_AT} is {_shown(due_at)}, not epoch milliseconds")
        if SQS_LAUNCH_MS <= absolute <= copy.sent_ms and not _made_here(copy):
            # It had passed before the copy was sent to wait: left over from an earlier life.
            return DelayedMessage(copy.message_id, copy.sent_ms + seconds * 1000)
        apart = abs(absolute - (copy.sent_ms + seconds * 1000))
        if apart > CONTRADICTION_MS:
            return Reject(
                f"{DUE_AT} {absolute} and {DELAY_SECONDS} {seconds} contradict each other: "
                f"{apart} ms apart, clock differences explain at most {CONTRADICTION_MS}"
            )
        due_ms = absolute
    if due_ms > MAX_DUE_MS:
        return Reject(f"due time {due_ms} ms is after the year 9999 ({MAX_DUE_MS} ms)")
    return DelayedMessage(copy.message_id, due_ms)


def _made_here(copy: ReceivedMessage) -> bool:
    return MADE_HERE.fullmatch(copy.deduplication_id or "") is not None


def _exact_ms(copy: ReceivedMessage, seconds: int) -> int:
    """The delay from SentTimestamp in milliseconds, the part below a second included."""
    if copy.sent_by_nservicebus:
        return seconds * 1000
    milliseconds = whole_number(text_of(copy.attributes, DELAY_MS))
    if milliseconds is None or -(-milliseconds // 1000) != seconds:
        # Absent, or left behind by a relay that rewrote only the whole seconds: those stand.
        return seconds * 1000
    return milliseconds


def _shown(attribute: Attribute) -> str:
    value = attribute.get("StringValue", attribute.get("BinaryValue", b""))
    return repr(value[:40])
