"""Relaying: one hop of each copy that waits in a delay queue."""

from sqsdelay.relaying.gathering import ForwardingRelay
from sqsdelay.relaying.outcomes import Outcome, RelaySettings, Status
from sqsdelay.relaying.relay import DueRelay, Relay

__all__ = ["DueRelay", "ForwardingRelay", "Outcome", "Relay", "RelaySettings", "Status"]
