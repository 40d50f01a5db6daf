"""Unrestricted delays for Amazon SQS: send with any delay; it arrives on time, once, intact."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqsdelay.message import Message
    from sqsdelay.schedule import Change
    from sqsdelay.sender import Route, SendResult
    from sqsdelay.sqs.consumer import DelayConsumer
    from sqsdelay.sqs.sender import DelaySender

__all__ = ["Change", "DelayConsumer", "DelaySender", "Message", "Route", "SendResult"]

_HOMES = {
    "Change": "sqsdelay.schedule",
    "DelayConsumer": "sqsdelay.sqs.consumer",
    "DelaySender": "sqsdelay.sqs.sender",
    "Message": "sqsdelay.message",
    "Route": "sqsdelay.sender",
    "SendResult": "sqsdelay.sender",
}


def __getattr__(name: str) -> Any:
    """Load on first use, so that importing sqsdelay does not import boto3."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
