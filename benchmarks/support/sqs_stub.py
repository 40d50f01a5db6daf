"""A stub of SQS's JSON protocol, fast enough that a client's own speed shows.

It stores nothing: sends are acknowledged and forgotten, receives answer with messages made on the
spot (see `Stub.supply`), and every request is counted. Run it in a process of its own:

    with running_stub(latency_ms=20) as stub:
        stub.client().send_message_batch(...)
        print(stub.requests())
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from email.utils import formatdate
from http.client import HTTPConnection
from itertools import count
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import boto3
import uvloop
from botocore.config import Config

from sqsdelay.core.limits import DELAY_QUEUE_SUFFIX, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT, string
from sqsdelay.sqs.endpoints import delay_queue_attributes

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

REGION = "eu-west-1"
BODY = json.dumps({"reminder": "renew", "customer": 4711, "note": "x" * 160})
"""About 200 bytes: what a received message holds."""


@dataclass(frozen=True, kw_only=True)
class Stub:
    """A running stub, seen from its user's process."""

    url: str

    def client(self, *, connections: int = 10, config: Config | None = None) -> SQSClient:
        """A boto3 client of the stub; botocore's defaults, or a config's, without a proxy."""
        return boto3.client(
            "sqs",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="stub",
            aws_secret_access_key="stub",
            config=Config(max_pool_connections=connections, proxies={}).merge(config or Config()),
        )

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process to which the stub is SQS."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "stub",
            "AWS_SECRET_ACCESS_KEY": "stub",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            **more,
        }

    def requests(self) -> Counter[str]:
        """Requests answered so far, per action."""
        return Counter(self._control("requests", {}))

    def cpu_seconds(self) -> float:
        """The processor time that the stub has used so far: at one a second it is the bottleneck."""
        return float(self._control("cpu", {})["seconds"])

    def set_latency(self, milliseconds: float) -> None:
        """Answer so much later from now on."""
        self._control("latency", {"milliseconds": milliseconds})

    def supply(self, messages: int, *, remaining_seconds: Sequence[int]) -> None:
        """Let receives answer with ``messages`` delayed messages from now on, then with none.

        Each has been in the delay queue for one hop of 900 s; what it still has to wait are the
        values of ``remaining_seconds``, in turn. Receipt handles are of no importance: a deleted
        message is not looked for.
        """
        self._control(
            "supply", {"messages": messages, "remaining_seconds": list(remaining_seconds)}
        )

    def keep(self) -> None:
        """Keep the entries of all sends from now on, and forget those kept before."""
        self._control("keep", {})

    def kept(self) -> list[dict[str, Any]]:
        """The entries sent since `keep`, each with the name of its ``queue``."""
        return list(self._control("kept", {})["entries"])

    def refuse(self, code: str, *, calls: int, action: str = "SendMessageBatch") -> None:
        """Answer the next ``calls`` calls of an action with an error of this code."""
        self._control("refuse", {"code": code, "calls": calls, "action": action})

    def throttle(self, calls_per_second: float | None, *, action: str = "SendMessageBatch") -> None:
        """Take so many calls of an action a second, all callers together, and refuse the others as
        SQS does; None takes them all again. `throttled` counts what was refused since."""
        self._control("throttle", {"calls_per_second": calls_per_second, "action": action})

    def throttled(self) -> int:
        """Calls refused for their rate since `throttle`."""
        return int(self._control("throttled", {})["calls"])

    def _control(self, what: str, argument: dict[str, Any]) -> dict[str, Any]:
        with closing(HTTPConnection(urlsplit(self.url).netloc, timeout=10)) as connection:
            headers = {"X-Amz-Target": f"Stub.{what}"}
            connection.request("POST", "/", json.dumps(argument), headers)
            answer = connection.getresponse()
            told = dict(json.load(answer))
        if answer.status != 200:
            raise RuntimeError(told["message"])
        return told


@contextmanager
def running_stub(*, latency_ms: float = 0, apart: bool = False) -> Iterator[Stub]:
    """A stub in its own process on a free loopback port; it ends with the block.

    Args:
        apart: the stub has one processor to itself, and this process one other, as far as there are two
            and the system can tell them apart: then neither takes time from the other.
    """
    command = [sys.executable, __file__, "--latency-ms", str(latency_ms)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the SQS stub did not start; its message is above")
        # Leaving the inner block closes the stub's stdin, which is what it waits for.
        with _apart(process.pid) if apart else nullcontext():
            yield Stub(url=f"http://127.0.0.1:{port}")


def forget_proxies() -> None:
    """The stub is on this machine, and libcurl makes no requests where a proxy is set."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]


@contextmanager
def _apart(other: int) -> Iterator[None]:
    """This process on one processor, another on one other."""
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(processors) < 2:
        yield
        return
    os.sched_setaffinity(other, processors[-1:])
    os.sched_setaffinity(0, processors[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


def _is_collision(name: str) -> bool:
    """Every queue exists but those that would share another's delay queue. There is one FIFO endpoint,
    ``payments.fifo``."""
    fifo = name.endswith(".fifo") and not name.endswith(DELAY_QUEUE_SUFFIX)
    return name == "payments" or (fifo and name != "payments.fifo")


class Throttle:
    """So many calls of one action a second; what was not called for is saved for one second."""

    def __init__(self, target: str, calls_per_second: float) -> None:
        self.refused = 0
        self._target = target
        self._rate = calls_per_second
        self._tokens = calls_per_second
        self._last = time.monotonic()

    def takes(self, target: str, now: float) -> bool:
        """Whether a call at this time is taken; one that is not is counted."""
        if target != self._target:
            return True
        self._tokens = min(self._rate, self._tokens + (now - self._last) * self._rate)
        self._last = now
        if self._tokens < 1:
            self.refused += 1
            return False
        self._tokens -= 1
        return True


class Service:
    """The actions, as far as clients notice them."""

    def __init__(self, *, latency_seconds: float) -> None:
        self.latency_seconds = latency_seconds
        self.port = 0
        self._requests: Counter[str] = Counter()
        self._kept: list[dict[str, Any]] | None = None
        self._refusals: dict[str, dict[str, Any]] = {}
        self._throttle: Throttle | None = None
        self._supplied = 0
        self._remaining_seconds: Sequence[int] = ()
        self._numbers = count(1)
        self._actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "AmazonSQS.GetQueueUrl": self._get_queue_url,
            "AmazonSQS.GetQueueAttributes": self._get_queue_attributes,
            "AmazonSQS.SendMessage": self._send_message,
            "AmazonSQS.SendMessageBatch": self._send_message_batch,
            "AmazonSQS.ReceiveMessage": self._receive_message,
            "AmazonSQS.DeleteMessageBatch": self._acknowledge_batch,
            "AmazonSQS.ChangeMessageVisibilityBatch": self._acknowledge_batch,
        }

    def answer(self, target: str, body: bytes) -> tuple[int, dict[str, Any], float]:
        """HTTP status, JSON and the seconds to answer after."""
        control, _, what = target.partition(".")
        if control == "Stub" and (told := self._controlled(what, json.loads(body))) is not None:
            return 200, told, 0
        if (action := self._actions.get(target)) is None:
            return 400, {"__type": "InvalidAction", "message": f"the stub has no {target!r}"}, 0
        self._requests[what] += 1
        if (code := self._refusal(target)) is not None:
            return 400, {"__type": f"com.amazonaws.sqs#{code}", "message": "so told"}, 0
        if self._throttle is not None and not self._throttle.takes(target, time.monotonic()):
            error = {"__type": "com.amazonaws.sqs#RequestThrottled", "message": "too many requests"}
            return 400, error, self.latency_seconds
        request = json.loads(body)
        if _is_collision(request.get("QueueName", "")):
            error = {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "no such queue"}
            return 400, error, self.latency_seconds
        return 200, action(request), self.latency_seconds

    def _controlled(self, what: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
        match what:
            case "requests":
                return dict(self._requests)
            case "cpu":
                return {"seconds": time.process_time()}
            case "kept":
                return {"entries": self._kept}
            case "throttled":
                return {"calls": self._throttle.refused if self._throttle else 0}
            case "latency":
                self.latency_seconds = wanted["milliseconds"] / 1000
            case "supply":
                self._supplied = wanted["messages"]
                self._remaining_seconds = wanted["remaining_seconds"]
            case "keep":
                self._kept = []
            case "refuse":
                self._refusals[f"AmazonSQS.{wanted['action']}"] = wanted
            case "throttle":
                rate, action = wanted["calls_per_second"], f"AmazonSQS.{wanted['action']}"
                self._throttle = None if rate is None else Throttle(action, rate)
            case _:
                return None
        return {}

    def _refusal(self, target: str) -> str | None:
        refusal = self._refusals.get(target)
        if refusal is None or refusal["calls"] == 0:
            return None
        refusal["calls"] -= 1
        return str(refusal["code"])

    def _get_queue_url(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"QueueUrl": f"http://127.0.0.1:{self.port}/000000000000/{request['QueueName']}"}

    def _get_queue_attributes(self, request: dict[str, Any]) -> dict[str, Any]:
        fifo = request["QueueUrl"].endswith(".fifo")
        return {"Attributes": delay_queue_attributes() if fifo else {"DelaySeconds": "0"}}

    def _send_message(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._kept is not None:
            queue = request["QueueUrl"].rpartition("/")[2]
            self._kept.append({**request, "queue": queue})
        return self._sent(request)

    def _sent(self, entry: dict[str, Any]) -> dict[str, Any]:
        md5 = hashlib.md5(entry["MessageBody"].encode(), usedforsecurity=False).hexdigest()
        return {"MessageId": f"stub-{next(self._numbers)}", "MD5OfMessageBody": md5}

    def _send_message_batch(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._kept is not None:
            queue = request["QueueUrl"].rpartition("/")[2]
            self._kept += [{**entry, "queue": queue} for entry in request["Entries"]]
        return {
            "Successful": [{"Id": entry["Id"], **self._sent(entry)} for entry in request["Entries"]]
        }

    def _acknowledge_batch(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"Successful": [{"Id": entry["Id"]} for entry in request["Entries"]]}

    def _receive_message(self, request: dict[str, Any]) -> dict[str, Any]:
        number = min(request.get("MaxNumberOfMessages", 1), self._supplied)
        if not number:
            return {}
        self._supplied -= number
        now_ms = time.time_ns() // 1_000_000
        return {"Messages": [self._delayed_message(now_ms) for _ in range(number)]}

    def _delayed_message(self, now_ms: int) -> dict[str, Any]:
        number = next(self._numbers)
        remaining = self._remaining_seconds[number % len(self._remaining_seconds)]
        message_id = f"message-{number}"
        return {
            "MessageId": f"stub-{number}",
            "ReceiptHandle": f"receipt-{number}",
            "Body": BODY,
            "Attributes": {
                "SenderId": "AIDASTUB",
                "SentTimestamp": str(now_ms - MAX_MESSAGE_TIMER_SECONDS * 1000),
                "ApproximateFirstReceiveTimestamp": str(now_ms),
                "ApproximateReceiveCount": "1",
                "MessageGroupId": message_id,
                "MessageDeduplicationId": message_id,
            },
            "MessageAttributes": {
                "kind": string("reminder"),
                DELAY_SECONDS: string(str(remaining + MAX_MESSAGE_TIMER_SECONDS)),
                DUE_AT: string(str(now_ms + remaining * 1000)),
            },
        }


class HttpConnection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as much of it as botocore speaks."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as asyncio's, so isinstance would say no.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        head, end, rest = self._received.partition(b"\r\n\r\n")
        headers = head.lower()
        length = int(_header(headers, head, b"content-length") or 0)
        if not end or len(rest) < length:
            return False
        self._received = rest[length:]
        target = _header(headers, head, b"x-amz-target").decode()
        status, answer, wait_seconds = self._service.answer(target, rest[:length])
        if wait_seconds:
            self._loop.call_later(wait_seconds, self._write, status, answer)
        else:
            self._write(status, answer)
        return True

    def _write(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        head = (
            f"HTTP/1.1 {status} Stub\r\nDate: {formatdate(usegmt=True)}\r\n"
            f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        if not self._transport.is_closing():
            self._transport.write(head.encode() + body)


def _header(lowered: bytes, head: bytes, name: bytes) -> bytes:
    start = lowered.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : len(head) if end < 0 else end].strip()


async def serve(service: Service, *, port: int) -> None:
    """Serve on the loopback until stdin closes; the port goes to stdout once it is open."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpConnection(service, loop), "127.0.0.1", port)
    service.port = server.sockets[0].getsockname()[1]
    print(service.port, flush=True)
    closed = asyncio.Event()

    def wait_for_end_of_stdin() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=wait_for_end_of_stdin, daemon=True).start()
    await closed.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="loopback port; 0 takes a free one")
    parser.add_argument("--latency-ms", type=float, default=0, help="answer so much later")
    options = parser.parse_args()
    service = Service(latency_seconds=options.latency_ms / 1000)
    uvloop.run(serve(service, port=options.port))


if __name__ == "__main__":
    main()
