"""Who may ask for what: host, origin, identity, and what a browser may do with the answer."""

from __future__ import annotations

import hmac
import logging
import math
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sqsdelay.core.readable import one_line
from sqsdelay.errors import InvalidSetting

logger = logging.getLogger("sqsdelay.console")

MIN_TOKEN_CHARS: Final = 24
"""Ours: 24 characters of base64 are 144 bits, out of reach of guessing over a network."""
MIN_TOKEN_KINDS: Final = 8
"""Ours: 24 random hexadecimal digits have fewer different ones once in 4,000 tokens."""
MAX_REQUEST_BYTES: Final = 6 * 1024 * 1024
"""A message of 1 MiB, of which a form with a percent-encoded field makes five times as much."""
MAX_STRANGERS_BYTES: Final = 4096
"""Of a visitor who has not signed in: a token is shorter."""
MOST_AT_ONCE: Final = 100
"""Requests worked on at a time; others are told to come again."""
FORM: Final = "application/x-www-form-urlencoded"
FREE_GUESSES: Final = 5
"""Wrong tokens of an address that cost it no time."""
GUESSES_IN_ALL: Final = 100
"""Wrong tokens of all addresses together, within `GUESS_SECONDS`, before every token has to wait."""
GUESS_SECONDS: Final = 60.0
"""The longest wait for another guess; wrong tokens that are older by ten times that are forgotten."""
MOST_KEPT: Final = 1_000
"""Addresses of wrong tokens, and sessions."""
SESSION_SECONDS: Final = 12 * 3600

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the console. `InvalidSetting` where it would be open to a network, or has a token that can
    be guessed."""

    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()  # names it may be called by, besides the loopback ones
    token: str | None = None
    user_header: str | None = None  # the header in which a proxy names whom it has authenticated
    proxies: tuple[str, ...] = ()
    """The addresses such a proxy calls from, or one that ends TLS before a token is asked for."""
    read_only: bool = False

    def __post_init__(self) -> None:
        chars, kinds = len(self.token or ""), len(set(self.token or ""))
        if self.token is not None and (chars < MIN_TOKEN_CHARS or kinds < MIN_TOKEN_KINDS):
            raise InvalidSetting(
                f"the console's token has {chars} characters, {kinds} of them different; use at least "
                f"{MIN_TOKEN_CHARS}, {MIN_TOKEN_KINDS} of them different, e.g. of: openssl rand -base64 32"
            )
        if (self.user_header is None) != (not self.proxies) and not (self.proxies and self.token):
            raise InvalidSetting(
                "a proxy that authenticates takes both: the header in which it names the user "
                "(--user-header X-Forwarded-User) and the address it calls from (--proxy 10.0.0.5)"
            )
        for proxy in self.proxies:
            if _address(proxy) is None:
                raise InvalidSetting(
                    "is no address; give the IP address that the proxy calls from", proxy=proxy
                )
        found = _address(self.host.strip("[]"))
        here = self.host == "localhost" if found is None else found.is_loopback
        if not (here or self.token or self.user_header):
            raise InvalidSetting(
                f"on {self.host} the console would be open to the network; set a token "
                "(SQSDELAY_CONSOLE_TOKEN), or put it behind a proxy that authenticates "
                "(--user-header and --proxy), or leave out --host"
            )


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An IP address; one of IPv4 as such, where a socket for both kinds shows it as ``::ffff:10.0.0.5``."""
    try:
        return ip_address(text.removeprefix("::ffff:"))
    except ValueError:
        return None


class Guard:
    """ASGI middleware before everything else: what it does not let pass has no effect.

    A visitor's cookie is Starlette's signed session. It names the secret that forms have to carry, and a
    sign-in, which is kept here: to sign out ends it wherever the cookie was copied to. All of it is done by
    the server's one thread, so no two guesses are looked at at once."""

    def __init__(
        self, app: ASGIApp, access: Access, port: int, monotonic: Callable[[], float]
    ) -> None:
        self._app, self._access, self._now = app, access, monotonic
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Wrong tokens by address: how many, and when the last of them came."""
        self._wrong_at = deque[float](maxlen=GUESSES_IN_ALL)
        self._signed_in: OrderedDict[str, float] = OrderedDict()
        self._at_once = 0
        self._proxies = {_address(each) for each in access.proxies}
        allowed = {name.lower() for name in access.allowed_hosts}
        self._hosts = allowed | {f"{name}:{port}" for name in allowed | LOOPBACK_NAMES}
        if port == 80:
            self._hosts |= LOOPBACK_NAMES
        # Cookies of a host are shared by all its ports.
        key, cookie = secrets.token_hex(32), f"sqsdelay_console_{port}"
        self._plain, self._secure = (
            SessionMiddleware(self._guarded, key, cookie, SESSION_SECONDS, https_only=secure)
            for secure in (False, True)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            # Whoever lies about TLS, does so about their own cookie.
            forwarded = Headers(scope=scope).get("x-forwarded-proto", "").lower().partition(",")[0]
            tls = "https" in (scope["scheme"], forwarded.strip())
            await (self._secure if tls else self._plain)(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        static, session = scope["path"].startswith("/static/"), scope["session"]
        until = self._signed_in.get(session.get("in", ""), float("-inf"))
        known = self._access.token is None or until > self._now()
        most = MAX_REQUEST_BYTES if known else MAX_STRANGERS_BYTES
        answer: ASGIApp | None = self._refusal(scope)
        if answer is None and not (known or static or scope["path"] == "/sign-in"):
            answer = RedirectResponse("/sign-in", status_code=303)
        try:
            body = await _body(scope, receive, most) if answer is None else b""
        except ClientDisconnect:
            return  # Half a form is none: it may end within the body of a message to send.
        if body is None:
            answer = _refused(scope, 413, f"the request is too long; send {most} bytes at most")
        elif answer is None and not static and self._at_once >= MOST_AT_ONCE:
            answer = _refused(scope, 503, "too many requests at once; try again in a second")
        place = int(answer is None and not static)
        if place:
            session.setdefault("csrf", secrets.token_hex(32))
        unread: list[Message] = [{"type": "http.request", "body": body}]

        async def read() -> Message:
            return unread.pop() if unread else await receive()

        async def guarded(message: Message) -> None:
            nonlocal place
            if message["type"] == "http.response.start":
                # Only the work is counted: the client takes its answer at its own pace.
                self._at_once -= place
                place = 0
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["Cache-Control"] = "max-age=86400" if static else "no-store"
            await send(message)

        self._at_once += place
        try:
            await (answer or self._app)(scope, read, guarded)
        finally:
            self._at_once -= place

    def sign_in(self, request: Request, token: str) -> Response | None:
        """Begin a session with a secret of its own; None where the token is wrong, which makes the wait for
        the next one longer. Another answer where it comes too soon after wrong ones."""
        address, now = one_line(self._caller(request)), self._now()
        count, last = self._wrong.get(address, (0, now))
        until = [now]
        if count >= FREE_GUESSES:
            until.append(last + min(GUESS_SECONDS, 2.0 ** min(count - FREE_GUESSES, 10)))
        if len(self._wrong_at) == GUESSES_IN_ALL:
            until.append(self._wrong_at[0] + GUESS_SECONDS)
        if (wait := math.ceil(max(until) - now)) > 0:
            answer = _refused(request.scope, 429, f"too many wrong tokens; try again in {wait} s")
            answer.headers["Retry-After"] = str(wait)
            return answer
        expected = self._access.token
        if expected is None or not hmac.compare_digest(token.encode(), expected.encode()):
            logger.warning("a wrong token from %s", address)
            self._wrong[address] = (1 if now - last > 10 * GUESS_SECONDS else count + 1, now)
            self._wrong.move_to_end(address)
            self._wrong_at.append(now)
            if len(self._wrong) > MOST_KEPT:
                self._wrong.popitem(last=False)
            return None
        session = request.session
        session.clear()
        session["csrf"], session["in"] = secrets.token_hex(32), secrets.token_hex(32)
        self._signed_in[session["in"]] = now + SESSION_SECONDS
        if len(self._signed_in) > MOST_KEPT:
            self._signed_in.popitem(last=False)
        logger.info("signed in with the token from %s", address)
        return RedirectResponse("/", 303)

    def sign_out(self, request: Request) -> Response:
        self._signed_in.pop(request.session.get("in", ""), None)
        request.session.clear()
        return RedirectResponse("/sign-in", 303)

    def _caller(self, request: Request) -> str:
        """Whence a visitor calls; the proxy that ends TLS says so, and nobody else is believed."""
        address = "an unknown address" if request.client is None else request.client.host
        if _address(address) in self._proxies:
            told = request.headers.getlist("x-forwarded-for") or [address]
            address = told[-1].rpartition(",")[2].strip()
            if _address(address) is None:  # 203.0.113.5:4711, [2001:db8::1]:4711
                address = address.rpartition(":")[0].strip("[]") or address
        return address

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not looked at at all. Otherwise the log's name of the visitor is added to it."""
        headers, name = Headers(scope=scope), "local" if self._access.token is None else "token"
        host = headers.get("host", "").lower()
        if host not in self._hosts or len(headers.getlist("host")) != 1:
            text = f"this console is not called {host!r}; to allow the name, start it with --allowed-host"
            return _refused(scope, 421, text)
        if self._access.user_header is not None:
            if _address((scope.get("client") or ("",))[0]) not in self._proxies:
                return _refused(scope, 403, "use the proxy that authenticates")
            named = headers.getlist(self._access.user_header)
            name = one_line("".join(named)).strip()[:200]
            if len(named) != 1 or not name:
                return _refused(scope, 403, "the proxy did not name the user")
        scope.setdefault("state", {})["visitor"] = name
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None
        if not _same_origin(headers, host):
            return _refused(scope, 403, "this request comes from another site")
        # Others name an encoding of their own, which may fail, or give characters that nothing can send.
        if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            return _refused(scope, 415, f"send the fields of a form, as {FORM}")
        length = int(headers.get("content-length", MAX_REQUEST_BYTES + 1))
        if "transfer-encoding" in headers or length > MAX_REQUEST_BYTES:
            text = f"send the request's length, {MAX_REQUEST_BYTES} bytes at most, and no Transfer-Encoding"
            return _refused(scope, 413, text)
        if self._access.read_only and scope["path"] not in ("/sign-in", "/sign-out"):
            return _refused(scope, 403, "this console is read-only (--read-only)")
        return None


def _same_origin(headers: Headers, host: str) -> bool:
    """Browsers say where a form or script is from; other programs do not."""
    try:
        origin = urlsplit(headers.get("origin", f"//{host}")).netloc.lower()
    except ValueError:
        return False
    return origin == host and headers.get("sec-fetch-site", "none") in ("same-origin", "none")


async def _body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """A request's body, counted as it comes, whatever its headers say; None where it is too long."""
    found = bytearray()
    async for part in Request(scope, receive).stream():
        found += part
        if len(found) > most:
            return None
    return bytes(found)


def _refused(scope: Scope, status: int, text: str) -> Response:
    logger.warning("refused %s %s: %s", scope["method"], one_line(scope["path"]), one_line(text))
    return PlainTextResponse(text, status_code=status)
