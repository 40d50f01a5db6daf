"""Which requests of a client go wrong, and how: drawn by chance, the same for the same seed."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection, HTTPException
from http.server import ThreadingHTTPServer
from random import Random
from typing import Any, Final, Self

from tests.patience import PATIENCE_SECONDS
from tests.services.network import Handler


class Fault(StrEnum):
    """What can happen to a request between a client and SQS."""

    LATENCY = "latency"
    """Request and answer each take up to half a second."""
    RESET_BEFORE = "connection reset before SQS acted"
    RESET_AFTER = "connection reset after SQS acted"
    INTERNAL_ERROR = "500"
    """InternalFailure; SQS acted on every second of them."""
    UNAVAILABLE = "503"
    THROTTLED = "400 throttling"
    """ThrottlingException or RequestThrottled."""
    PARTIAL = "partial batch failure, SenderFault false"
    REFUSED = "partial batch failure, SenderFault true"
    TRUNCATED = "answer cut off"
    """Its Content-Length is longer than what comes; SQS acted."""
    STALLED = "connection that stalls"
    """Nothing comes back, and nothing ends the connection; SQS acted on every second of them."""
    EMPTIED = "answer without content"
    """A 200 whose JSON is an empty object, as a gateway between may make it; SQS acted."""


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Faults with their chances per request.

    The nth request's fault depends on seed and n alone, so two runs of a client that makes the same
    requests in the same order meet the same faults.
    """

    seed: str
    chances: Mapping[Fault, float] = field(default_factory=dict)

    def draw(self, number: int) -> tuple[Fault | None, Random]:
        """The fault of request ``number``, and the chance that decides its details."""
        random = Random(f"{self.seed}/{number}")
        point = random.random()
        for fault, chance in self.chances.items():
            point -= chance
            if point < 0:
                return fault, random
        return None, random


_LONGEST_LATENCY_SECONDS: Final = 0.5
_AFTER_SQS_ACTED: Final = (Fault.RESET_AFTER, Fault.STALLED, Fault.TRUNCATED, Fault.EMPTIED)
_RESETS: Final = (Fault.RESET_BEFORE, Fault.RESET_AFTER)
_STALL_SECONDS: Final = 60
"""Longer than any client waits."""
_THROTTLING: Final = ("ThrottlingException", "RequestThrottled")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request as it went: ``answer`` is SQS's own where SQS acted, ``told`` whether it arrived.

    ``fault`` is None where nothing was done to it. ``asked_ms`` is when the request had come.
    """

    action: str
    request: Mapping[str, Any]
    answer: Mapping[str, Any] | None
    told: bool
    fault: str | None
    asked_ms: int


@dataclass(frozen=True, kw_only=True)
class _Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class SqsProxy:
    """A party's own address of an SQS server; a context manager.

    Args:
        target_port: the server's, on loopback.
        plan: what goes wrong.
        on_exchange: called after each request, before the client is answered.
        interrupt: called with the action before each request reaches SQS; may raise ConnectionError
            to have the request dropped.
        denied: actions on queues (by name) that are denied for now; the caller changes it.
    """

    def __init__(
        self,
        target_port: int,
        plan: FaultPlan,
        *,
        on_exchange: Callable[[Exchange], None] = lambda _: None,
        interrupt: Callable[[str], None] = lambda _: None,
        denied: Set[tuple[str, str]] = frozenset(),
    ) -> None:
        self.target_port = target_port
        self.plan = plan
        self.on_exchange = on_exchange
        self.interrupt = interrupt
        self.denied = denied
        self.errors: list[BaseException] = []
        self._number = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def next_number(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self.errors and error is None:
            raise self.errors[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    proxy: SqsProxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed leave broken connections behind; anything else is a mistake."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.proxy.errors.append(error)


class _Handler(Handler):
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._upstream = HTTPConnection(
            "127.0.0.1", self.server.proxy.target_port, timeout=PATIENCE_SECONDS
        )

    def finish(self) -> None:
        self._upstream.close()
        with suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the client died meanwhile
            return
        self._asked_ms = time.time_ns() // 1_000_000
        action = self.headers["X-Amz-Target"].rpartition(".")[2]
        proxy = self.server.proxy
        try:
            proxy.interrupt(action)
        except ConnectionError:
            return self._reset()
        request = json.loads(body)
        if (action.removesuffix("Batch"), _queue_name(request)) in proxy.denied:
            reply = _error(403, "AccessDeniedException", "not authorized to perform " + action)
            return self._end(action, request, None, reply, "denied")
        fault, random = proxy.plan.draw(proxy.next_number())
        if fault is Fault.LATENCY:
            time.sleep(random.random() * _LONGEST_LATENCY_SECONDS)
        if fault is Fault.STALLED and random.random() < 0.5:
            self._end(action, request, None, None, fault)
            return None
        early = _reply_without_sqs(fault, random)
        if early is not None or fault is Fault.RESET_BEFORE:
            return self._end(action, request, None, early, fault)
        failed = _entries_to_fail(fault, request, random)
        self._act(action, request, failed, fault, random)

    def _act(
        self,
        action: str,
        request: dict[str, Any],
        failed: list[dict[str, Any]],
        fault: Fault | None,
        random: Random,
    ) -> None:
        """Let SQS act on what is not to fail, then answer as the fault wants it."""
        reply = self._forward(_without(request, failed))
        answer = json.loads(reply.body or b"{}") if reply.status == 200 else None
        if failed:
            answer = {"Successful": [], **(answer or {})}
            answer["Failed"] = [*answer.get("Failed", ()), *failed]
            reply = _json(200, answer)
        elif fault in (Fault.PARTIAL, Fault.REFUSED):
            fault = None  # no batch, or none of its entries
        if fault is Fault.LATENCY:
            time.sleep(random.random() * _LONGEST_LATENCY_SECONDS)
        elif fault is Fault.INTERNAL_ERROR:
            reply = _error(500, "InternalFailure", "an internal error")
        elif fault is Fault.EMPTIED:
            reply = _json(200, {})
        lost = fault in (Fault.RESET_AFTER, Fault.STALLED)
        self._end(action, request, answer, None if lost else reply, fault)

    def _forward(self, request: Mapping[str, Any]) -> _Reply:
        if request.get("Entries") == []:
            return _json(200, {})
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("host", "content-length", "connection", "expect")
        }
        body = json.dumps(request)
        for attempt in (1, 2):
            try:
                self._upstream.request("POST", self.path, body, headers)
                answer = self._upstream.getresponse()
                return _Reply(status=answer.status, headers=answer.getheaders(), body=answer.read())
            except (HTTPException, OSError):
                # The server closed an idle connection; a fresh one tells whether it is there.
                self._upstream.close()
                if attempt == 2:
                    raise
        raise AssertionError

    def _end(
        self,
        action: str,
        request: dict[str, Any],
        answer: dict[str, Any] | None,
        reply: _Reply | None,
        fault: str | None,
    ) -> None:
        told = fault not in _AFTER_SQS_ACTED and fault is not Fault.INTERNAL_ERROR
        exchange = Exchange(
            action=action,
            request=request,
            answer=answer,
            told=told and not self._given_up(),
            fault=fault,
            asked_ms=self._asked_ms,
        )
        self.server.proxy.on_exchange(exchange)
        if fault is Fault.STALLED:
            return self._stall()
        if reply is None:
            return self._reset()
        cut = len(reply.body) // 2 if fault is Fault.TRUNCATED else 0
        self._answer(reply, cut)

    def _given_up(self) -> bool:
        """Whether the client has closed the connection: on a busy machine any answer may come too late."""
        try:
            come: bytes = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return come == b""

    def _answer(self, reply: _Reply, cut: int) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body[: len(reply.body) - cut])
        if cut:
            self.close_connection = True

    def _stall(self) -> None:
        """Say nothing until the client has had enough, and closes the connection."""
        self.close_connection = True
        self.connection.settimeout(_STALL_SECONDS)
        with suppress(OSError):
            self.connection.recv(1)

    def _reset(self) -> None:
        """Close with a TCP reset, as a crashed host or a middlebox does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with closing(self.connection):
            self.rfile.close()


def _queue_name(request: Mapping[str, Any]) -> str:
    return str(request.get("QueueUrl", "")).rpartition("/")[2]


def _reply_without_sqs(fault: Fault | None, random: Random) -> _Reply | None:
    if fault is Fault.UNAVAILABLE:
        return _error(503, "ServiceUnavailable", "the service is unavailable")
    if fault is Fault.THROTTLED:
        return _error(400, random.choice(_THROTTLING), "rate exceeded")
    if fault is Fault.INTERNAL_ERROR and random.random() < 0.5:
        return _error(500, "InternalFailure", "an internal error")
    return None


def _entries_to_fail(
    fault: Fault | None, request: Mapping[str, Any], random: Random
) -> list[dict[str, Any]]:
    """About half of a batch's entries, as SQS reports them failed."""
    if fault is Fault.PARTIAL:
        reason: dict[str, Any] = {"Code": "InternalError", "SenderFault": False}
    elif fault is Fault.REFUSED:
        reason = {"Code": "InvalidParameterValue", "SenderFault": True}
    else:
        return []
    entries = request.get("Entries", ())
    return [
        {"Id": entry["Id"], "Message": "told why", **reason}
        for entry in entries
        if random.random() < 0.5
    ]


def _without(request: dict[str, Any], failed: list[dict[str, Any]]) -> dict[str, Any]:
    if not failed:
        return request
    ids = {entry["Id"] for entry in failed}
    return {**request, "Entries": [e for e in request["Entries"] if e["Id"] not in ids]}


def _json(status: int, content: Mapping[str, Any]) -> _Reply:
    headers = [("Content-Type", "application/x-amz-json-1.0")]
    return _Reply(status=status, headers=headers, body=json.dumps(content).encode())


def _error(status: int, code: str, message: str) -> _Reply:
    return _json(status, {"__type": f"com.amazonaws.sqs#{code}", "message": message})
