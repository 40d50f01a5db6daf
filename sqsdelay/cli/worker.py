"""What commands that run until they are stopped share: logging, and a stop by signal."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from rich.logging import RichHandler

from sqsdelay.cli.console import err
from sqsdelay.core.one_line import one_line


class OneLine(logging.Formatter):
    """A record's message on one line, whatever it quotes; a traceback keeps its lines, and no escapes."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def formatException(self, info: Any) -> str:
        return "\n".join(map(one_line, super().formatException(info).splitlines()))


def log_to_stderr() -> None:
    """Log what matters to a person, one line each. With --verbose more is logged already."""
    if logging.getLogger("sqsdelay").level == logging.DEBUG:
        return
    handler: logging.Handler
    if err.is_terminal:
        handler = RichHandler(console=err, show_path=False)
        handler.setFormatter(OneLine("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
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
