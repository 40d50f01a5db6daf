"""The console as an ASGI application."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException

from sqsdelay.console import api, forms, pages, signing_in
from sqsdelay.console.guard import Guard, Sessions
from sqsdelay.console.rendering import page
from sqsdelay.console.services import Services
from sqsdelay.core.readable import one_line
from sqsdelay.errors import (
    BodyStoreUnavailable,
    InvalidEndpoint,
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
