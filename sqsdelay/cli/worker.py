"""What commands that run until they are stopped share: logging, and a stop by signal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from rich.logging import RichHandler

from sqsdelay.cli.console import err
from sqsdelay.core.readable import one_line
from sqsdelay.limits import STOP_SECONDS

CLOSING_SECONDS: Final = 0.5
"""What a store may take to close: with the `STOP_SECONDS` before, a process ends in 5 s."""


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


def stop_on_signals(last_words: Callable[[], str] | None = None) -> threading.Event:
    """An event set by the first SIGTERM or SIGINT; the second one ends the process as usual.

    Args:
        last_words: for work that cannot leave a call that is not answered: the process ends after
            `STOP_SECONDS`, wherever it is, and prints these. What it had in hand comes
            back, as after a crash. Left out, the work ends by itself.
    """
    stop = threading.Event()

    def ask_to_stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()
        if last_words is not None:
            ending = threading.Timer(STOP_SECONDS, _end, [last_words])
            ending.daemon = True
            ending.start()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    return stop


def end_soon(last_words: Callable[[], str]) -> None:
    """All work is done: end the process in a moment, even if a connection cannot be closed by then."""
    ending = threading.Timer(CLOSING_SECONDS, _end, [last_words])
    ending.daemon = True
    ending.start()


def _end(last_words: Callable[[], str]) -> None:
    """End the process without its threads and connections: closing these can take as long."""
    err.print("stopped while a call is not answered; what is in hand comes back", soft_wrap=True)
    err.print(last_words(), highlight=False, soft_wrap=True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(0)
