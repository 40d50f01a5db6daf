"""A TCP forwarder whose client can be made deaf: what the server answers is swallowed."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from tests.services.tcp_proxy import TcpProxy


class DeafProxy(TcpProxy):
    """Forwards both ways, but nothing from the target while ``swallowing`` is set."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.swallowing = threading.Event()

    def __enter__(self) -> Self:
        self.up()
        return self

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        if source.getpeername() != self._target:
            super()._pump(source, sink)
            return
        self._open.add(source)
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.swallowing.is_set():
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
