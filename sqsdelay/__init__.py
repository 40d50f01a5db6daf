"""Unrestricted delays for Amazon SQS: send with any delay; it arrives on time, once, intact."""

from typing import TYPE_CHECKING

from sqsdelay.core import on_first_use

if TYPE_CHECKING:
    from sqsdelay.core.message import Message, Route
    from sqsdelay.ledger.files import FileLedger, LoggerLedger, record_received
    from sqsdelay.parking.parking import Change
    from sqsdelay.sending.sender import SendResult
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.sender import AsyncDelaySender, DelaySender
    from sqsdelay.sqs.unrestricted import unrestricted

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

# Load on first use, so that importing sqsdelay does not import boto3.
__getattr__ = on_first_use(
    __name__,
    {
        "sqsdelay.sqs.sender": "AsyncDelaySender DelaySender",
        "sqsdelay.parking.parking": "Change",
        "sqsdelay.sqs.consumer": "DelayConsumer",
        "sqsdelay.ledger.files": "FileLedger LoggerLedger record_received",
        "sqsdelay.core.message": "Message Route",
        "sqsdelay.sending.sender": "SendResult",
        "sqsdelay.sqs.unrestricted": "unrestricted",
    },
)
