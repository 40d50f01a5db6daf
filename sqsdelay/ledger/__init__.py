"""What happened to every message, as events; and where they go: a file, or a logger."""

from sqsdelay.ledger.events import Event, EventKind, Ledger, Source, from_json, to_json
from sqsdelay.ledger.files import FileLedger, LoggerLedger, record_received

__all__ = [
    "Event",
    "EventKind",
    "FileLedger",
    "Ledger",
    "LoggerLedger",
    "Source",
    "from_json",
    "record_received",
    "to_json",
]
