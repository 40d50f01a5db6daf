"""Networks that fail: connections that are cut, answers that are swallowed, a port where nobody listens,
and a host of its own beside this one (a network namespace), that can lose its power."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.patience import PATIENCE_SECONDS

HERE = "10.213.7.1"
"""This machine's address, as the host sees it."""
_THERE = "10.213.7.2"


def bound(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A port that no other program is given. It refuses connections while no server listens on it, too: one
    that binds with SO_REUSEADDR, as servers do."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, port))
    return holder


@contextmanager
def closed_port(address: str = "127.0.0.1") -> Iterator[int]:
    """A port of `bound`."""
    with bound(address) as holder:
        yield int(holder.getsockname()[1])


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    request_queue_size = 64


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server of these requests."""
    with _Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class TcpProxy:
    """Forwards connections from a port of its own to ``target_port`` on loopback while it is up. With its
    ``with`` all its connections and threads end."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def up(self) -> None:
        """Accept connections (again, on the same port)."""
        self._listener = bound(port=self.port)
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def down(self) -> None:
        """Cut all connections and refuse new ones."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                inward, _ = self._listener.accept()
            except OSError:
                return
            try:
                outward = socket.create_connection(self._target)
            except OSError:
                inward.close()
                continue
            self._open |= {inward, outward}
            for ends in ((inward, outward), (outward, inward)):
                self._threads.append(threading.Thread(target=self._pump, args=ends, daemon=True))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            answer = source.getpeername() == self._target
            while data := source.recv(65536):
                if self._passes(data, answer=answer):
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)

    def _passes(self, data: bytes, *, answer: bool) -> bool:
        """Whether to forward what just came: an ``answer`` of the target, or what is for it. An OSError ends
        the connection."""
        return True

    def __enter__(self) -> Self:
        self._holder = bound()
        self.port = int(self._holder.getsockname()[1])
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        for each in self._threads:
            each.join(PATIENCE_SECONDS)
        self._holder.close()


class CountingProxy(TcpProxy):
    """Counts the connections that came."""

    connections = 0

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        self.connections += sink.getpeername() == self._target
        super()._pump(source, sink)


class DeafProxy(TcpProxy):
    """Forwards both ways, but nothing from the target while ``swallowing`` is set."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.swallowing = threading.Event()

    def _passes(self, data: bytes, *, answer: bool) -> bool:
        return not (answer and self.swallowing.is_set())


class StallingProxy(TcpProxy):
    """Takes no more from the client, once ``stalled`` is set, than its own buffer and the kernel's hold."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.stalled = threading.Event()
        self._ended = threading.Event()

    def down(self) -> None:
        self._ended.set()
        super().down()

    def _passes(self, data: bytes, *, answer: bool) -> bool:
        return answer or not self.stalled.is_set() or self._ended.wait()


class HoldingProxy(DeafProxy):
    """Holds answers back, and gives them once it lets go; ``held`` is set while it holds one."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.held = threading.Event()
        self._may = threading.Event()
        self._may.set()

    def hold(self) -> None:
        """From now on."""
        self._may.clear()

    def down(self) -> None:
        self.let_go()
        super().down()

    def let_go(self) -> None:
        """Give what was held back, and all else at once."""
        self._may.set()
        self.held.clear()

    def _passes(self, data: bytes, *, answer: bool) -> bool:
        if not answer:
            return True
        if not self._may.is_set():
            self.held.set()
        return self._may.wait(PATIENCE_SECONDS)


class VanishingHost:
    """Runs processes that reach this machine at `HERE`, until the power goes.

    Raises:
        RuntimeError: this machine can have no such host; what it takes.
    """

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self._space, self._near, self._far = f"gone-{name}", f"n{name}", f"f{name}"

    def __enter__(self) -> VanishingHost:
        _check()
        _ip("netns", "add", self._space)
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far)
        _ip("link", "set", self._far, "netns", self._space)
        _ip("addr", "add", f"{HERE}/30", "dev", self._near)
        _ip("link", "set", self._near, "up")
        _ip("-n", self._space, "addr", "add", f"{_THERE}/30", "dev", self._far)
        _ip("-n", self._space, "link", "set", self._far, "up")
        return self

    def __exit__(self, *error: object) -> None:
        _ip("netns", "del", self._space)
        subprocess.run(["ip", "link", "del", self._near], check=False, capture_output=True)

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """A process on the host."""
        return subprocess.Popen(["ip", "netns", "exec", self._space, *command], **options)

    def lose_power(self) -> None:
        """Nothing comes from the host any more: no packet, not even that a connection is closed."""
        _ip("-n", self._space, "link", "set", self._far, "down")


def _check() -> None:
    """Nothing else can be silent like a host without power: of a stopped process the kernel goes on
    to answer keepalives."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise RuntimeError(
            "a test needs a host that can lose its power: run it as root (sudo), with iproute2 "
            "installed (apt-get install iproute2)"
        )
    probe = ["unshare", "--net", "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"]
    tried = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=30)
    if tried.returncode:
        raise RuntimeError(
            "a test needs a host that can lose its power, and network namespaces are refused here "
            f"({tried.stderr.strip()}); in a container: --cap-add=NET_ADMIN --cap-add=SYS_ADMIN"
        )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)
