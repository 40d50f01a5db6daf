"""What strangers do with connections, on sockets to the real server: no client repairs what they send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from httpx import Client

from sqsdelay.console import ConsoleSettings, guard, server
from sqsdelay.console.guard import FREE_GUESSES, MAX_REQUEST_BYTES, MAX_STRANGERS_BYTES, Access
from sqsdelay.console.server import serving
from sqsdelay.console.services import Services
from sqsdelay.errors import InvalidSetting
from sqsdelay.stores import open_store
from sqsdelay.testing import ManualClock
from tests.functional.console.conftest import Running, visited
from tests.functional.console.test_access import TOKEN, asking, csrf_of, tried
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS

GET = "GET /sign-in HTTP/1.1\r\nHost: {host}\r\n"
POST = "POST /sign-in HTTP/1.1\r\nHost: {host}\r\n"
UPLOAD = "Content-Type: multipart/form-data; boundary=x; charset=unicode_escape\r\n"
UPLOADED = b'--x\r\nContent-Disposition: form-data; name="csrf"\r\n\r\n\\ud800\r\n--x--\r\n'


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """A console that asks for a token."""
    services = Services(ConsoleSettings(endpoints=("orders",)), Access(token=TOKEN))
    with serving(services, port=0) as url:
        yield urlsplit(url).netloc


def connected(host: str, *, buffer: int | None = None) -> socket.socket:
    """A new connection, with room for so many bytes that are not read."""
    name, _, port = host.rpartition(":")
    found = socket.socket()
    if buffer is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    found.settimeout(PATIENCE_SECONDS)
    found.connect((name, int(port)))
    return found


def status(host: str, head: str, body: bytes = b"") -> int:
    """The status of the answer to these bytes."""
    with closing(connected(host)) as asking:
        asking.sendall(head.format(host=host).encode() + b"\r\n" + body)
        answer = b""
        while len(answer) < 12:
            some = asking.recv(100)
            assert some, "closed without an answer"
            answer += some
        return int(answer[9:12])


@pytest.mark.parametrize("count", [600, pytest.param(2_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("said", ["", GET + "X-A: b\r\n", POST + "Content-Length: 9\r\n\r\nto"])
def test_who_says_nothing_keeps_nobody_out(host: str, said: str, count: int) -> None:
    """More connections than may be open, that are silent, or stop within the headers or the body."""
    with ExitStack() as silent:
        for _ in range(count):
            each = silent.enter_context(connected(host))
            each.sendall(said.format(host=host).encode())
        for _ in range(3):
            assert status(host, GET) == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::"][: 1 + socket.has_dualstack_ipv6()])
def test_every_address_of_the_machine_is_one_of_ipv4_too(address: str) -> None:
    with closing(server.bound(address, 0)) as listening:
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), 5).close()
    with pytest.raises(InvalidSetting, match=r"host='nope\.invalid' is no address; give one of"):
        server.bound("nope.invalid", 0)


def test_a_request_has_to_come_in_time(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte of it comes."""
    monkeypatch.setattr(server, "CLIENT_SECONDS", 0.2)
    ended = False
    with closing(connected(host)) as slow:
        slow.sendall(GET.format(host=host).encode())
        slow.settimeout(0.01)
        for _ in range(100 * int(PATIENCE_SECONDS)):
            try:
                ended = slow.recv(1) == b""
            except TimeoutError:
                with suppress(ConnectionError):
                    slow.sendall(b"X")
            except ConnectionError:
                ended = True
            if ended:
                return
    raise AssertionError("still connected")


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """A console with a page that is larger than the buffers of its connections, and a request for it."""
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(url, endpoint="orders")) as store:
        store.set_up()
        store.store([a_message("m", 2**41, body=b'"' * 2**16)])

    def bound(*where: Any) -> socket.socket:
        listening = listen(*where)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listening

    listen = server.bound
    monkeypatch.setattr(server, "bound", bound)
    services = Services(ConsoleSettings(endpoints=("orders",), stores={"orders": url}), Access())
    with serving(services, port=0) as address:
        host = urlsplit(address).netloc
        yield host, f"GET /message?id=m HTTP/1.1\r\nHost: {host}\r\n\r\n"


def begun(host: str, request: str) -> socket.socket:
    """A connection that has got the beginning of its answer, and takes no more of it."""
    slow = connected(host, buffer=4096)
    slow.sendall(request.encode())
    assert slow.recv(12) == b"HTTP/1.1 200"
    return slow


def test_an_answer_is_taken_in_time(
    large: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection ends before the answer does."""
    ended, end = threading.Event(), server.Connection.connection_lost

    def lost(connection: server.Connection, error: Exception | None) -> None:
        end(connection, error)
        ended.set()

    monkeypatch.setattr(server, "CLIENT_SECONDS", 0.2)
    monkeypatch.setattr(server.Connection, "connection_lost", lost)
    with closing(begun(*large)):
        assert ended.wait(PATIENCE_SECONDS)


def test_who_takes_none_keeps_nobody_out(
    large: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more connections than may be open, and than are worked for at a time, each reads the beginning."""
    monkeypatch.setattr(server, "MOST_OPEN", 30)
    monkeypatch.setattr(guard, "MOST_AT_ONCE", 10)
    with ExitStack() as slow:
        for _ in range(40):
            slow.enter_context(closing(begun(*large)))
        assert status(large[0], GET) == 303, "nobody has to sign in"


def test_requests_are_counted_not_connections(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too many are worked on, another is told to come again; a file is no work."""
    monkeypatch.setattr(guard, "MOST_AT_ONCE", 0)
    assert status(host, GET) == 503
    assert status(host, GET.replace("/sign-in", "/static/console.css")) == 200


def test_the_next_request_waits_for_the_answer(host: str) -> None:
    """Whoever asks on before is no browser: a thousand files at once would keep the console busy."""
    file = "GET /static/console.css HTTP/1.1\r\nHost: {host}\r\n\r\n"
    with closing(connected(host)) as hasty:
        hasty.sendall(file.format(host=host).encode() * 1000)
        with suppress(ConnectionResetError):
            assert hasty.recv(1) == b"", "answered"


def posted(client: Client, path: str, **fields: str) -> tuple[socket.socket, bytes]:
    """A connection on which all of a form but its last byte was sent, and that byte."""
    whole = client.build_request("POST", path, data=fields)
    headers = "".join(f"{name}: {value}\r\n" for name, value in whole.headers.items())
    found = connected(client.base_url.netloc.decode())
    found.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n".encode() + whole.content[:-1])
    return found, whole.content[-1:]


def test_half_a_form_is_none(running: Running) -> None:
    """A connection that ends within a message's id does not cancel the message that the id's beginning
    names; nor is the beginning of a body sent."""
    running.park("a", "ab")
    with visited(Services(running.services.settings, Access())) as client:
        fields = {"csrf": csrf_of(client, "/send"), "action": "cancel", "key": "k" * 9, "m": ":ab"}
        half, _ = posted(client, "/do", **fields)
        with closing(half):
            half.shutdown(socket.SHUT_WR)
            assert half.recv(1) == b""
    assert running.store.pending_count() == 2


@pytest.mark.parametrize("attempts", [1, 99])
def test_wrong_tokens_that_come_at_once_are_all_counted(attempts: int) -> None:
    """Also where each was begun before the first one was answered."""
    with ExitStack() as open_, asking(ManualClock()) as client:
        fields = {"csrf": csrf_of(client, "/sign-in"), "token": "wrong"}
        begun = [posted(client, "/sign-in", **fields) for _ in range(attempts)]
        for each, last in begun:
            open_.enter_context(closing(each)).sendall(last)
        statuses = [each.recv(12)[9:] for each, _ in begun]
        free = min(attempts, FREE_GUESSES)
        assert sorted(statuses) == [b"403"] * free + [b"429"] * (attempts - free)
        assert tried(client, TOKEN) == (303 if attempts == 1 else 429)


@pytest.mark.parametrize(
    ("headers", "body", "refused"),
    [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", b"5\r\n12345\r\n", 413),
        ("Transfer-Encoding: chunked", b"5\r\n12345\r\n", 413),
        (f"Content-Length: {MAX_REQUEST_BYTES + 1}", b"", 413),
        ("X-No: length", b"", 413),
        (f"Content-Length: {MAX_STRANGERS_BYTES + 1}", b"t" * (MAX_STRANGERS_BYTES + 1), 413),
        ("Origin: http://[\r\nContent-Length: 0", b"", 403),
        (UPLOAD + f"Content-Length: {len(UPLOADED)}", UPLOADED, 415),
    ],
)
def test_what_no_form_sends_is_refused(host: str, headers: str, body: bytes, refused: int) -> None:
    """In words, before any of it is kept: bytes are counted before anybody reads a form."""
    kind = "" if UPLOAD in headers else f"Content-Type: {guard.FORM}\r\n"
    assert status(host, f"{POST}{kind}{headers}\r\n", body) == refused
