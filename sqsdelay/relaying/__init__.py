"""Relaying: one hop of each copy that waits in a delay queue."""

from sqsdelay.relaying.due_relay import DueRelay
from sqsdelay.relaying.outcome import Outcome, Status
from sqsdelay.relaying.relay import Relay
from sqsdelay.relaying.settings import RelaySettings

__all__ = ["DueRelay", "Outcome", "Relay", "RelaySettings", "Status"]
