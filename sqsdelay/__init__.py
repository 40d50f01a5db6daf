"""Unrestricted delays for Amazon SQS: send with any delay; it arrives on time, once, intact."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsdelay.ledgers.file import FileLedger
    from sqsdelay.ledgers.logger import LoggerLedger
    from sqsdelay.message import Message
    from sqsdelay.received import record_received
    from sqsdelay.route import Route
    from sqsdelay.schedule import Change
    from sqsdelay.sender import SendResult
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.sender import DelaySender
    from sqsdelay.sqs.unrestricted import unrestricted

__all__ = [
    "Change",
    "DelayConsumer",
    "DelaySender",
    "FileLedger",
    "LoggerLedger",
    "Message",
    "Route",
    "SendResult",
    "record_received",
    "unrestricted",
]

_HOMES = {
    "Change": "sqsdelay.schedule",
    "DelayConsumer": "sqsdelay.sqs.consumer",
    "DelaySender": "sqsdelay.sqs.sender",
    "FileLedger": "sqsdelay.ledgers.file",
    "LoggerLedger": "sqsdelay.ledgers.logger",
    "Message": "sqsdelay.message",
    "Route": "sqsdelay.route",
    "SendResult": "sqsdelay.sender",
    "record_received": "sqsdelay.received",
    "unrestricted": "sqsdelay.sqs.unrestricted",
}


def __getattr__(name: str) -> Any:
    """Load on first use, so that importing sqsdelay does not import boto3."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
