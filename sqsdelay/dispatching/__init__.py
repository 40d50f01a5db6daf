"""Dispatching: a store's messages are released on time."""

from sqsdelay.dispatching.background import DelayedDelivery
from sqsdelay.dispatching.dispatcher import Dispatcher, Round
from sqsdelay.dispatching.exactly_once import ExactlyOnce
from sqsdelay.dispatching.settings import DispatchSettings

__all__ = ["DelayedDelivery", "DispatchSettings", "Dispatcher", "ExactlyOnce", "Round"]
