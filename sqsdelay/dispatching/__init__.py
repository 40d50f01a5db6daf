"""Dispatching: releasing a store's messages on time."""

from sqsdelay.dispatching.dispatcher import DelayedDelivery, Dispatcher, DispatchSettings
from sqsdelay.dispatching.settlement import Round
from sqsdelay.ports.queues import ExactlyOnce, Failure, Outbox, Released

__all__ = [
    "DelayedDelivery",
    "DispatchSettings",
    "Dispatcher",
    "ExactlyOnce",
    "Failure",
    "Outbox",
    "Released",
    "Round",
]
