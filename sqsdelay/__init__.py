"""Unrestricted delays for Amazon SQS: send with any delay; it arrives on time, once, intact."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsdelay.boto3_client.unrestricted import unrestricted
    from sqsdelay.core.message import Message, Route
    from sqsdelay.ledger.files import FileLedger, LoggerLedger, record_received
    from sqsdelay.parking.parking import Change
    from sqsdelay.sending.sender import SendResult
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.sender import AsyncDelaySender, DelaySender

__all__ = [
    "AsyncDelaySender",
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
    "AsyncDelaySender": "sqsdelay.sqs.sender",
    "Change": "sqsdelay.parking.parking",
    "DelayConsumer": "sqsdelay.sqs.consumer",
    "DelaySender": "sqsdelay.sqs.sender",
    "FileLedger": "sqsdelay.ledger.files",
    "LoggerLedger": "sqsdelay.ledger.files",
    "Message": "sqsdelay.core.message",
    "Route": "sqsdelay.core.message",
    "SendResult": "sqsdelay.sending.sender",
    "record_received": "sqsdelay.ledger.files",
    "unrestricted": "sqsdelay.boto3_client.unrestricted",
}


def __getattr__(name: str) -> Any:
    """Load on first use, so that importing sqsdelay does not import boto3."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
