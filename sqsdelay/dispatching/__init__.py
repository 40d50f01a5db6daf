"""Dispatching: a store's messages are released on time."""

from sqsdelay.dispatching.background import DelayedDelivery
from sqsdelay.dispatching.dispatcher import Dispatcher, Round
from sqsdelay.dispatching.exactly_once import ExactlyOnce
from sqsdelay.dispatching.settings import DispatchSettings
from sqsdelay.ports.queues import Failure, Outbox, Released

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
