"""What commands that run until they are stopped share: logging, and a stop by signal."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from rich.logging import RichHandler

from sqsdelay.cli.console import err


def log_to_stderr() -> None:
    """Log what matters to a person, one line each."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(message)s",
        handlers=[RichHandler(console=err, show_path=False)],
    )
    for chatty in ("botocore", "boto3", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # It logs each failed connection several times, with tracebacks; our own errors say why, once.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


def stop_on_signals() -> threading.Event:
    """An event set by the first SIGTERM or SIGINT; the second one ends the process as usual."""
    stop = threading.Event()

    def ask_to_stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    return stop
