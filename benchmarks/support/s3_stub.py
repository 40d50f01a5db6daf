"""An S3 that takes everything and keeps no message: it counts requests, messages and bytes.

A process of its own, so that what it costs is not the client's.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import unquote

from sqsdelay.stores.s3.layout import parse

_COUNTS = "/-counts"


class _Kept:
    """What came in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.small: dict[str, bytes] = {}

    def put(self, key: str, body: bytes) -> None:
        named = parse(key.partition("/v1/")[2])
        with self.lock:
            self.counts["PutObject"] += 1
            if named is None:
                self.small[key] = body
            else:
                self.counts["objects"] += 1
                self.counts["messages"] += named[0].count
                self.counts["bytes"] += len(body)

    def get(self, key: str) -> bytes | None:
        with self.lock:
            self.counts["GetObject" if key else "ListObjectsV2"] += 1
            return self.small.get(key) if key else b"<ListBucketResult></ListBucketResult>"


def _serve(pipe: Connection) -> None:
    kept = _Kept()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def _key(self) -> str:
            return unquote(self.path.partition("?")[0].removeprefix("/").partition("/")[2])

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("ETag", '"etag"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def handle_expect_100(self) -> bool:
            # botocore holds a body back for a second, unless it is told at once to go on.
            done = super().handle_expect_100()
            self.wfile.flush()
            return done

        def do_PUT(self) -> None:
            kept.put(self._key(), self.rfile.read(int(self.headers["Content-Length"] or 0)))
            self._answer(200)

        def do_GET(self) -> None:
            if self.path == _COUNTS:
                self._answer(200, json.dumps(kept.counts).encode())
                kept.counts.clear()
                return
            body = kept.get(self._key())
            self._answer(
                404 if body is None else 200, body or b"<Error><Code>NoSuchKey</Code></Error>"
            )

        def do_HEAD(self) -> None:
            self._answer(200)

        def do_DELETE(self) -> None:
            self._answer(204)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        pipe.send(http.server_address[1])
        http.serve_forever()


class S3Stub:
    """The process, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url

    def counts(self) -> Counter[str]:
        """Requests by name, ``objects`` of messages, ``messages`` and ``bytes``, since the last call."""
        with urllib.request.urlopen(self.url + _COUNTS, timeout=30) as answer:
            return Counter(json.load(answer))


@contextmanager
def running_s3_stub() -> Iterator[S3Stub]:
    """The stub on a loopback port, gone at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield S3Stub(f"http://127.0.0.1:{ours.recv()}")
    finally:
        process.terminate()
        process.join()
