"""The console's process: a port, and a web server on it until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sqsdelay.console.pages import create_app
from sqsdelay.console.services import Services
from sqsdelay.errors import ConfigurationError, InvalidSetting

CLOSING_SECONDS: Final = 2
"""How long answers that are being given may take once the console is told to stop."""
STARTING_SECONDS: Final = 10.0
CLIENT_SECONDS: Final = 20.0
"""How long a client may take for its request, from the connection or the previous answer to its last byte;
and for the next part of an answer."""
MOST_OPEN: Final = 500
"""Connections at a time. A process may open 1,024 files on most machines; `ACCEPTED_AT_ONCE` come on top."""
ACCEPTED_AT_ONCE: Final = 256


class Connection(H11Protocol):
    """A client's connection, which ends where the client does not send its request, or does not take the
    answer, in time. Where too many are open, a new one takes the place of the one that has waited for its
    client the longest: whoever says nothing, or takes nothing, keeps nobody out."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST_OPEN:
            open_: Iterable[Any] = self.connections
            waiting = [each for each in open_ if getattr(each, "_timer", None)]
            oldest = min(waiting, key=lambda each: each._timer.when())
            # At once, not when the client's system has heard of it.
            self.connections.discard(oldest)
            oldest._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """The time runs while the client is waited for, and is not begun anew by each byte of a request."""
        cycle = self.cycle
        asked = cycle is not None and not cycle.response_complete and not cycle.more_body
        if asked and self.conn.trailing_data[0]:
            # No browser asks on without its answer: it could ask for a thousand files, and take none.
            self._end()
        elif asked and not self.flow.write_paused:
            self._forget()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(CLIENT_SECONDS, self._end)

    def _end(self) -> None:
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, on ``::`` for IPv4 too; raises `ConfigurationError` where it cannot."""
    name = host.strip("[]")
    both = {"family": socket.AF_INET6, "dualstack_ipv6": socket.has_dualstack_ipv6()}
    kind: Any = both if ":" in name else {}
    try:
        return socket.create_server((name, port), backlog=ACCEPTED_AT_ONCE, **kind)
    except OSError as error:
        if isinstance(error.__context__, socket.gaierror):
            raise InvalidSetting("is no address; give one of this machine", host=host) from error
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} is in use; give another with --port, or 0 for any that is free"
            ) from error
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}; give an address of this machine"
        ) from error


@contextmanager
def serving(services: Services, *, port: int) -> Iterator[str]:
    """Serve while the context lasts, where `bound` can listen; gives the address. Port 0 is any free one."""
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
            http=Connection,
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
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
