"""The page that asks for the token."""

from __future__ import annotations

import hmac
import logging
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from sqsdelay.console.api import services_of
from sqsdelay.console.forms import own_form
from sqsdelay.console.guard import Guard, too_soon
from sqsdelay.console.rendering import page

logger = logging.getLogger("sqsdelay.console")

router = APIRouter(include_in_schema=False)


@router.get("/sign-in")
def sign_in_page(request: Request) -> Response:
    """A form for the token."""
    if services_of(request).access.token is None:
        return RedirectResponse("/", status_code=303)
    return page(request, "sign_in.html", {"wrong": False})


@router.post("/sign-in")
def sign_in(
    request: Request, token: Annotated[str, Form()] = "", csrf: Annotated[str, Form()] = ""
) -> Response:
    """Compare it; a right one gives a new session."""
    own_form(request, csrf)
    guard = _guard(request)
    if wait := guard.wait(request.scope):
        return too_soon(request.scope, wait)
    expected = services_of(request).access.token
    if expected is None or not hmac.compare_digest(token.strip().encode(), expected.encode()):
        guard.wrong(request.scope)
        return page(request, "sign_in.html", {"wrong": True}, status=403)
    answer = RedirectResponse("/", status_code=303)
    session = guard.sessions.sign_in(guard.now())
    answer.headers["Set-Cookie"] = guard.set_cookie(session, request.scope)
    logger.info("signed in with the token")
    return answer


@router.post("/sign-out")
def sign_out(request: Request, csrf: Annotated[str, Form()] = "") -> Response:
    """End the session."""
    own_form(request, csrf)
    _guard(request).sessions.sign_out(request.state.session)
    return RedirectResponse("/sign-in", status_code=303)


def _guard(request: Request) -> Guard:
    guard = request.app.state.guard
    assert isinstance(guard, Guard)
    return guard
