"""An S3 in memory behind HTTP, for processes that are not the test's own; faults on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from botocore.exceptions import ClientError

from tests.services.in_memory_s3 import InMemoryS3
from tests.services.network import Handler, serving

BUCKET = "parked"


class S3Server:
    """One bucket, whatever its name.

    ``before`` is called with method and key before a request is done, ``after`` before it is answered; what
    either raises is answered as 503.
    """

    def __init__(self) -> None:
        self.s3 = InMemoryS3()
        self.before: Callable[[str, str], None] = _nothing
        self.after: Callable[[str, str], None] = _nothing
        self.url = ""

    def reset(self) -> None:
        """An empty bucket without faults."""
        self.before = self.after = _nothing
        self.s3.objects.clear()
        self.s3.requests.clear()

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, Any, bytes]:
        """Status, headers and body of an answer."""
        parts = urlsplit(path)
        _, _, key = parts.path.removeprefix("/").partition("/")
        key = unquote(key)
        self.before(method, key)
        done = self._done(method, key, parse_qs(parts.query), headers, body)
        self.after(method, key)
        return done

    def _done(
        self, method: str, key: str, query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, Any, bytes]:
        s3, there = self.s3, {"Bucket": BUCKET, "Key": key}
        if method == "PUT" and key:
            conditions = {
                name: headers[header]
                for name, header in (("IfNoneMatch", "If-None-Match"), ("IfMatch", "If-Match"))
                if headers[header]
            }
            return 200, {"ETag": s3.put_object(**there, Body=body, **conditions)["ETag"]}, b""
        if method == "GET" and key:
            found = s3.get_object(**there)
            return 200, {"ETag": found["ETag"]}, found["Body"].read()
        if method == "GET":
            return 200, {}, self._listing(query)
        if method == "HEAD" and key:
            return 200, {"ETag": s3.head_object(**there)["ETag"]}, b""
        if method == "DELETE":
            s3.delete_object(**there, IfMatch=headers["If-Match"])
            return 204, {}, b""
        return 200, {}, b""  # The bucket is there.

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        given = {
            name: query[key][0]
            for name, key in (
                ("Prefix", "prefix"),
                ("StartAfter", "start-after"),
                ("ContinuationToken", "continuation-token"),
            )
            if key in query
        }
        found = self.s3.list_objects_v2(Bucket=BUCKET, **given)
        contents = "".join(
            f"<Contents><Key>{escape(each['Key'])}</Key><ETag>{escape(each['ETag'])}</ETag>"
            f"<Size>{each['Size']}</Size></Contents>"
            for each in found["Contents"]
        )
        token = escape(found.get("NextContinuationToken", ""))
        more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        truncated = str(found["IsTruncated"]).lower()
        return (
            f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{contents}"
            "</ListBucketResult>"
        ).encode()


def _nothing(_: str, __: str) -> None:
    return


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """A server on a loopback port, gone at the end."""
    server = S3Server()

    class Requests(Handler):
        def _answer(self) -> None:
            body = self.read()
            try:
                status, headers, content = server.answer(
                    self.command, self.path, self.headers, body
                )
            except ClientError as error:
                code = error.response["Error"]["Code"]
                status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
                headers, content = {}, f"<Error><Code>{code}</Code></Error>".encode()
            except Exception as error:
                status, headers = 503, {}
                content = f"<Error><Code>SlowDown</Code><Message>{error}</Message></Error>".encode()
            self.answer(content, status, **headers)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer

    with serving(Requests) as server.url:
        yield server
