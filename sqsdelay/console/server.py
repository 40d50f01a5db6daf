"""The console's process: a port, and a web server on it until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import anyio.to_thread
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from sqsdelay.console import api, forms, pages, signing_in
from sqsdelay.console.guard import Guard, Sessions
from sqsdelay.console.rendering import page
from sqsdelay.console.services import Services
from sqsdelay.core.readable import one_line
from sqsdelay.errors import (
    BodyStoreUnavailable,
    ConfigurationError,
    InvalidEndpoint,
    InvalidSetting,
    MessageConflict,
    NoStore,
    QueueMissing,
    QueueUnavailable,
    SqsDelayError,
    StoreError,
)

_STATIC: Final = Path(__file__).parent / "static"
_ABOUT: Final = (
    "Everything the pages show and do. A change returns a job, which may still be in progress; "
    "GET /api/v1/jobs/{key} reports its progress."
)


def create_app(
    services: Services, *, port: int, monotonic: Callable[[], float] = time.monotonic
) -> Guard:
    """The application, guarded.

    Args:
        services: what it shows and does.
        port: where it listens: part of the names it may be called by.
        monotonic: tells a session's age.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(services.close)

    app = FastAPI(
        title="sqsdelay console",
        version=version("sqsdelay"),
        description=_ABOUT,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # They would load scripts from elsewhere.
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.services = services
    for each in (api, pages, forms, signing_in):
        app.include_router(each.router)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    app.add_exception_handler(SqsDelayError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _refused)
    guard = Guard(app, access=services.access, sessions=Sessions(), port=port, monotonic=monotonic)
    app.state.guard = guard
    return guard


def status_of(error: SqsDelayError) -> int:
    """The HTTP status that says what kind of an error it is."""
    if isinstance(error, InvalidEndpoint):
        return 404
    if isinstance(error, NoStore | QueueMissing | MessageConflict):
        return 409
    if isinstance(error, StoreError | QueueUnavailable | BodyStoreUnavailable):
        return 503
    return 400


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, SqsDelayError)
    return _answer(request, status_of(error), type(error).__name__, one_line(error))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    kind = "NotFound" if error.status_code == 404 else type(error).__name__
    return _answer(request, error.status_code, kind, one_line(error.detail))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = "; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in error.errors())
    return _answer(request, 400, "InvalidRequest", one_line(told))


def _place(location: tuple[object, ...]) -> str:
    return ".".join(str(part) for part in location if part not in ("body", "query"))


def _answer(request: Request, status: int, kind: str, text: str) -> Response:
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": kind, "message": text}, status_code=status)
    values = {
        "title": "This cannot be shown" if status == 404 else "This cannot be done",
        "text": text,
    }
    return page(request, "problem.html", values, status=status)


CLOSING_SECONDS: Final = 2
"""How long answers that are being given may take once the console is told to stop."""

STARTING_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 20.0
"""How long a client may take for its request, from the connection or the previous answer to its last byte."""

MOST_OPEN: Final = 500
"""Connections at a time. A process may open 1,024 files on most machines; `ACCEPTED_AT_ONCE` come on top."""

ACCEPTED_AT_ONCE: Final = 256


class Connection(H11Protocol):
    """A client's connection, which ends where the client does not send its request in time.

    Where too many are open, a new one takes the place of the one that has kept its request to itself for
    the longest: whoever says nothing keeps nobody out.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > MOST_OPEN:
            timers = {
                each._timer.when(): each
                for each in self.connections
                if isinstance(each, Connection) and each._timer is not None
            }
            oldest = timers[min(timers)]
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

    def _watch(self) -> None:
        """The time runs until the request is there, and is not begun anew by each of its bytes."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._forget()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._end)

    def _end(self) -> None:
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
