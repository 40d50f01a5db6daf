"""Where a ledger's events go: a file, or a logger."""

from sqsdelay.ledgers.file import FileLedger
from sqsdelay.ledgers.logger import LoggerLedger

__all__ = ["FileLedger", "LoggerLedger"]
