"""Who may ask for what: host, origin, identity, and what a browser may do with the answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sqsdelay.console.settings import Access
from sqsdelay.core.readable import one_line

logger = logging.getLogger("sqsdelay.console")

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""A message of 1 MiB, of which a form makes three times as much."""

MAX_STRANGERS_BYTES: Final = 4096
"""Of a visitor who has not signed in: a token is shorter."""

MOST_AT_ONCE: Final = 100
"""Requests answered at a time; others are told to come again."""

FREE_GUESSES: Final = 5
"""Wrong tokens of an address that cost it no time."""

GUESSES_IN_ALL: Final = 100
"""Wrong tokens of all addresses together, within `GUESS_SECONDS`, before every token has to wait."""

GUESS_SECONDS: Final = 60.0
"""The longest wait for another guess; wrong tokens that are older by ten times that are forgotten."""

ADDRESSES_KEPT: Final = 1_000

SESSIONS_KEPT: Final = 1_000
SESSION_SECONDS: Final = 12 * 3600

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": with it browsers do not tell the origin of a form either.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks: a name for the log, and what a form must carry to be theirs."""

    name: str
    csrf: str


class Sessions:
    """Cookies of visitors. What they are worth ends with the process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._signed_in: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def csrf(self, session: str) -> str:
        """What forms of this session carry."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def sign_in(self, now: float) -> str:
        """A new session that is signed in."""
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._signed_in[session] = now + SESSION_SECONDS
            while len(self._signed_in) > SESSIONS_KEPT:
                self._signed_in.popitem(last=False)
        return session

    def sign_out(self, session: str) -> None:
        """End a session."""
        with self._lock:
            self._signed_in.pop(session, None)

    def signed_in(self, session: str, now: float) -> bool:
        """Whether a session is signed in, and not too old."""
        with self._lock:
            return self._signed_in.get(session, float("-inf")) > now


class Guesses:
    """Wrong tokens: each makes the wait for the next one longer."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=GUESSES_IN_ALL)
        self._lock = threading.Lock()

    def wait(self, address: str, now: float) -> float:
        """Seconds until a token from there is looked at; 0 where it is at once."""
        with self._lock:
            count, last = self._wrong.get(address, (0, now))
            own = 0.0
            if count >= FREE_GUESSES:
                own = last + min(GUESS_SECONDS, 2.0 ** min(count - FREE_GUESSES, 10)) - now
            full = len(self._all) == GUESSES_IN_ALL
            return max(0.0, own, self._all[0] + GUESS_SECONDS - now if full else 0.0)

    def wrong(self, address: str, now: float) -> None:
        """A token from there was wrong."""
        with self._lock:
            count, last = self._wrong.pop(address, (0, now))
            self._wrong[address] = (1 if now - last > 10 * GUESS_SECONDS else count + 1, now)
            self._all.append(now)
            while len(self._wrong) > ADDRESSES_KEPT:
                self._wrong.popitem(last=False)


class Guard:
    """ASGI middleware before everything else: what it does not let pass has no effect.

    Args:
        app: what is guarded.
        access: who may use it.
        sessions: their cookies.
        port: the port it listens on.
        monotonic: tells a session's age.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        sessions: Sessions,
        port: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._app = app
        self._access = access
        self.sessions = sessions
        self.now = monotonic
        self._guesses = Guesses()
        self._at_once = 0
        self._hosts = {
            *(f"{name}:{port}" for name in LOOPBACK_NAMES),
            *(LOOPBACK_NAMES if port == 80 else ()),
            *(name.lower() for name in access.allowed_hosts),
            *(f"{name.lower()}:{port}" for name in access.allowed_hosts),
        }
        # Cookies of a host are shared by all its ports.
        self.cookie = f"sqsdelay_console_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        session, new = self._session(headers)
        refusal = self._refusal(scope, headers)
        stranger = False
        if refusal is None:
            refusal = self._unknown(scope, headers, session)
            stranger = self._stranger(session)
        static = scope["path"].startswith("/static/")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answer[name] = value
                answer["Cache-Control"] = "max-age=86400" if static else "no-store"
                if new and not static and "set-cookie" not in answer:
                    answer.append("set-cookie", self.set_cookie(session, scope))
            await send(message)

        most = MAX_STRANGERS_BYTES if stranger else MAX_REQUEST_BYTES
        body = b"" if refusal is not None else await _body(receive, most)
        if body is None:
            refusal = _refused(scope, 413, f"the request is too long; send {most} bytes at most")
        elif refusal is None and self._at_once >= MOST_AT_ONCE:
            refusal = _refused(scope, 503, "too many requests at once; try again in a second")
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        scope["state"] = {
            **scope.get("state", {}),
            "visitor": Visitor(self._name(headers), self.sessions.csrf(session)),
            "session": session,
        }
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def read() -> Message:
            return unread.pop() if unread else await receive()

        self._at_once += 1
        try:
            await self._app(scope, read, guarded)
        finally:
            self._at_once -= 1

    def wait(self, scope: Scope) -> float:
        """Seconds until a token from this address is looked at."""
        return self._guesses.wait(_address(scope), self.now())

    def wrong(self, scope: Scope) -> None:
        """A token from this address was wrong."""
        logger.warning("a wrong token from %s", one_line(_address(scope)))
        self._guesses.wrong(_address(scope), self.now())

    def set_cookie(self, session: str, scope: Scope) -> str:
        """The header that gives a browser its session."""
        # Whoever lies about TLS, does so about their own cookie.
        forwarded = Headers(scope=scope).get("x-forwarded-proto", "").lower()
        secure = "https" in (scope["scheme"], forwarded)
        return (
            f"{self.cookie}={session}; HttpOnly; SameSite=Lax; Path=/{'; Secure' if secure else ''}"
        )

    def _session(self, headers: Headers) -> tuple[str, bool]:
        """The visitor's session, and whether it is a new one."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            found = None
        if found is not None and 20 <= len(found.value) <= 100 and found.value.isascii():
            return found.value, False
        return secrets.token_urlsafe(32), True

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Why a request is not looked at at all."""
        host = headers.get("host", "").lower()
        if host not in self._hosts or len(headers.getlist("host")) != 1:
            text = f"this console is not called {host!r}; to allow the name, start it with --allowed-host"
            return _refused(scope, 421, text)
        if self._access.user_header is not None:
            client = scope.get("client")
            if client is None or client[0] not in self._access.proxies:
                return _refused(scope, 403, "use the proxy that authenticates")
            if len(headers.getlist(self._access.user_header)) != 1 or not self._user(headers):
                return _refused(scope, 403, "the proxy did not name the user")
        if scope["method"] in SAFE:
            return None
        if not _same_origin(headers, host):
            return _refused(scope, 403, "this request comes from another site")
        size = headers.get("content-length", "")
        if "transfer-encoding" in headers:
            return _refused(scope, 413, "send the request's length, not Transfer-Encoding")
        if not (size.isascii() and size.isdigit()) or int(size) > MAX_REQUEST_BYTES:
            text = (
                f"the request has no length or is too long; send {MAX_REQUEST_BYTES} bytes at most"
            )
            return _refused(scope, 413, text)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["path"].startswith("/api/") and kind != "application/json":
            # A form of another site cannot send this without asking first.
            return _refused(scope, 415, "send JSON, with Content-Type: application/json")
        if self._access.read_only and scope["path"] not in ("/sign-in", "/sign-out"):
            return _refused(scope, 403, "this console is read-only (--read-only)")
        return None

    def _unknown(self, scope: Scope, headers: Headers, session: str) -> Response | None:
        """Why a visitor has to say who they are first."""
        token, path = self._access.token, scope["path"]
        if token is None or path.startswith("/static/") or path == "/sign-in":
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if wait := self.wait(scope):
                return too_soon(scope, wait)
            if hmac.compare_digest(given.encode(), token.encode()):
                return None
            self.wrong(scope)
        if self.sessions.signed_in(session, self.now()):
            return None
        if path.startswith("/api/"):
            answer = _refused(scope, 401, "give the console's token: Authorization: Bearer …")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        return RedirectResponse("/sign-in", status_code=303)

    def _stranger(self, session: str) -> bool:
        """Whether somebody has to sign in with a form and has not."""
        return self._access.token is not None and not self.sessions.signed_in(session, self.now())

    def _name(self, headers: Headers) -> str:
        if self._access.user_header is not None:
            return self._user(headers)
        return "token" if self._access.token is not None else "local"

    def _user(self, headers: Headers) -> str:
        return one_line(headers.get(self._access.user_header or "", "")).strip()[:200]


def _same_origin(headers: Headers, host: str) -> bool:
    """Browsers say where a form or script is from; other programs do not."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == host
    except ValueError:
        return False


async def _body(receive: Receive, most: int) -> bytes | None:
    """A request's body, counted as it comes, whatever its headers say; None where it is too long."""
    found = bytearray()
    while True:
        message = await receive()
        found += message.get("body", b"")
        if len(found) > most:
            return None
        if not message.get("more_body", False):
            return bytes(found)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return "an unknown address" if client is None else str(client[0])


def too_soon(scope: Scope, wait: float) -> Response:
    """The answer to a token that comes too soon after wrong ones."""
    seconds = math.ceil(wait)
    answer = _refused(scope, 429, f"too many wrong tokens; try again in {seconds} s")
    answer.headers["Retry-After"] = str(seconds)
    return answer


def _refused(scope: Scope, status: int, text: str) -> Response:
    logger.warning("refused %s %s: %s", scope["method"], one_line(scope["path"]), one_line(text))
    if scope["path"].startswith("/api/"):
        body = json.dumps({"error": "Refused", "message": text})
        return Response(body, status_code=status, media_type="application/json")
    return PlainTextResponse(text, status_code=status)
