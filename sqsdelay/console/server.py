"""The console's process: a port, and a web server on it until it is told to stop."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from sqsdelay.console.app import create_app
from sqsdelay.console.services import Services
from sqsdelay.errors import ConfigurationError, InvalidSetting

CLOSING_SECONDS: Final = 2
"""How long answers that are being given may take once the console is told to stop."""

STARTING_SECONDS: Final = 10.0
MOST_AT_ONCE: Final = 100
"""Requests answered at a time; others are told to come again."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        ConfigurationError: the port is in use, or the address is none of this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidSetting(f"--host {host!r} is not valid; {error.strerror}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} is in use; give another with --port, or 0 for any that is free"
            ) from error
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return found


@contextmanager
def serving(services: Services, *, port: int) -> Iterator[str]:
    """Serve while the context lasts; gives the address.

    Args:
        port: where to listen; 0 is any that is free.

    Raises:
        ConfigurationError: it cannot listen there.
    """
    host = services.access.host
    with bound(host, port) as listening:
        found = listening.getsockname()[1]
        config = uvicorn.Config(
            create_app(services, port=found),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=CLOSING_SECONDS,
            limit_concurrency=MOST_AT_ONCE,
        )
        server = uvicorn.Server(config)
        # Not in the main thread: there it would take the process's signals.
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        deadline = time.monotonic() + STARTING_SECONDS
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not server.started:
            raise ConfigurationError(f"the console did not start on {host}:{found}; see its log")
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{found}/"
        finally:
            server.should_exit = True
            thread.join(2 * CLOSING_SECONDS)
