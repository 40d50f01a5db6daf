"""What a request to SQS costs a client's processor, by ways of making it.

Each way receives ten messages, sends ten and deletes ten, one request after the other on one thread,
against the stub. The ways take turns; the figures are medians. Nothing is judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import aiohttp
import httpx
import pycurl
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session

from benchmarks.support.contest import Work, compared
from benchmarks.support.sqs_stub import REGION, Stub, forget_proxies, running_stub
from sqsdelay.limits import MAX_BATCH_ENTRIES
from sqsdelay.sqs.client import client_config
from sqsdelay.sqs.curl import request_by_curl

QUEUE = "orders-delay.fifo"
REMAINING_SECONDS = 86_400
ACTIONS = {
    "ReceiveMessage": "receive_message",
    "SendMessageBatch": "send_message_batch",
    "DeleteMessageBatch": "delete_message_batch",
}
JSON = "application/x-amz-json-1.0"

Call = Callable[[str, dict[str, Any]], Any]
"""Makes a request of this action with these parameters, and gives its answer."""


def round_of(call: Call, queue_url: str) -> None:
    """Ten messages received, sent again, and deleted."""
    received = call(
        "ReceiveMessage",
        {
            "QueueUrl": queue_url,
            "MaxNumberOfMessages": MAX_BATCH_ENTRIES,
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        },
    )["Messages"]
    sends = [
        {
            "Id": str(number),
            "MessageBody": message["Body"],
            "MessageAttributes": message["MessageAttributes"],
            "MessageGroupId": message["MessageId"],
            "MessageDeduplicationId": message["MessageId"],
        }
        for number, message in enumerate(received)
    ]
    deletes = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
        for number, message in enumerate(received)
    ]
    for action, entries in (("SendMessageBatch", sends), ("DeleteMessageBatch", deletes)):
        answer = call(action, {"QueueUrl": queue_url, "Entries": entries})
        if len(answer["Successful"]) != MAX_BATCH_ENTRIES:
            raise RuntimeError(f"not all was done: {answer}")


def by_client(stub: Stub, config: Config | None, *, curl: bool = False) -> Call:
    """A boto3 client."""
    client = stub.client(config=config)
    if curl and (in_the_way := request_by_curl(client)):
        raise SystemExit(in_the_way)
    return lambda action, parameters: getattr(client, ACTIONS[action])(**parameters)


class Signed:
    """Requests put together by hand, signed by botocore, their answers read by hand.

    What they leave out: retries, errors, binary attributes, timeouts, keys that are renewed.
    """

    def __init__(self, stub: Stub, send: Callable[[AWSRequest], bytes]) -> None:
        self._url = f"{stub.url}/"
        self._auth = SigV4Auth(Credentials("stub", "stub"), "sqs", REGION)
        self._send = send

    def __call__(self, action: str, parameters: dict[str, Any]) -> Any:
        headers = {"Content-Type": JSON, "X-Amz-Target": f"AmazonSQS.{action}"}
        request = AWSRequest("POST", self._url, headers, json.dumps(parameters).encode())
        self._auth.add_auth(request)
        return json.loads(self._send(request))


def by_session(stub: Stub) -> Call:
    """botocore's own HTTP session, over urllib3."""
    session = URLLib3Session(proxies={})
    return Signed(stub, lambda request: bytes(session.send(request.prepare()).content))


def by_urllib3(stub: Stub) -> Call:
    pool = urllib3.PoolManager()

    def send(request: AWSRequest) -> bytes:
        headers = dict(request.headers)
        return pool.urlopen("POST", str(request.url), body=request.data, headers=headers).data

    return Signed(stub, send)


def by_httpx(stub: Stub, closing: ExitStack) -> Call:
    client = closing.enter_context(httpx.Client(trust_env=False))

    def send(request: AWSRequest) -> bytes:
        headers = dict(request.headers)
        return client.post(str(request.url), content=request.data, headers=headers).content

    return Signed(stub, send)


def by_aiohttp(stub: Stub, closing: ExitStack) -> Call:
    """One request at a time on an event loop of its own."""
    loop = asyncio.new_event_loop()
    closing.callback(loop.close)

    async def opened() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    session = loop.run_until_complete(opened())
    closing.callback(lambda: loop.run_until_complete(session.close()))

    async def post(request: AWSRequest) -> bytes:
        headers = dict(request.headers)
        async with session.post(str(request.url), data=request.data, headers=headers) as answer:
            return await answer.read()

    return Signed(stub, lambda request: loop.run_until_complete(post(request)))


def by_curl(stub: Stub) -> Call:
    curl = pycurl.Curl()

    def send(request: AWSRequest) -> bytes:
        curl.setopt(pycurl.URL, request.url)
        curl.setopt(pycurl.HTTPHEADER, [f"{n}: {value}" for n, value in request.headers.items()])
        curl.setopt(pycurl.POSTFIELDS, request.data)
        return bytes(curl.perform_rb())

    return Signed(stub, send)


def by_signing_curl(stub: Stub) -> Call:
    """libcurl signs too."""
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, f"{stub.url}/")
    curl.setopt(pycurl.AWS_SIGV4, f"aws:amz:{REGION}:sqs")
    curl.setopt(pycurl.USERPWD, "stub:stub")

    def call(action: str, parameters: dict[str, Any]) -> Any:
        headers = [f"Content-Type: {JSON}", f"X-Amz-Target: AmazonSQS.{action}"]
        curl.setopt(pycurl.HTTPHEADER, headers)
        curl.setopt(pycurl.POSTFIELDS, json.dumps(parameters).encode())
        return json.loads(curl.perform_rb())

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=300, help="requests a round")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each, taking turns")
    options = parser.parse_args()
    forget_proxies()
    with running_stub(apart=True) as stub, ExitStack() as closing:
        own = client_config(connections=1, parameter_validation=False)
        ways = {
            "boto3, its defaults": by_client(stub, None),
            "sqsdelay's own client": by_client(stub, own),
            "sqsdelay's own client, by libcurl": by_client(stub, own, curl=True),
            "by hand: botocore's HTTP session": by_session(stub),
            "by hand: urllib3": by_urllib3(stub),
            "by hand: httpx": by_httpx(stub, closing),
            "by hand: aiohttp": by_aiohttp(stub, closing),
            "by hand: libcurl": by_curl(stub),
            "by hand: libcurl, which signs": by_signing_curl(stub),
        }
        queue_url = f"{stub.url}/000000000000/{QUEUE}"

        def asked(call: Call) -> Work:
            def work(requests: int) -> None:
                turns = max(1, requests // len(ACTIONS))
                stub.supply(MAX_BATCH_ENTRIES * turns, remaining_seconds=[REMAINING_SECONDS])
                for _ in range(turns):
                    round_of(call, queue_url)

            return work

        works = {name: asked(call) for name, call in ways.items()}
        compared(stub, works, messages=options.requests, rounds=options.rounds, unit="request")


if __name__ == "__main__":
    main()
