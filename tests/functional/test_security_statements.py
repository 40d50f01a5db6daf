"""What SECURITY.md says that no other test shows."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import psutil
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders

from sqsdelay.cdk.functions import DEFAULT_MAX_CONCURRENCY
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_DUE_MS, MAX_RETENTION_SECONDS
from sqsdelay.ports.queues import Failure
from sqsdelay.sqs.outbox import SqsOutbox
from sqsdelay.sqs.queues import SqsQueues
from sqsdelay.testing.local_aws import LocalAws
from tests.messages import a_message

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()


def test_the_local_aws_listens_on_loopback_only(local_aws: LocalAws) -> None:
    """It takes any key: nobody else on the network may reach it."""
    assert local_aws._process is not None
    server = psutil.Process(local_aws._process.pid)
    listening = [
        connection.laddr
        for process in (server, *server.children(recursive=True))
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert local_aws.port in {address.port for address in listening}
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_no_request_follows_a_queue_url_to_its_host() -> None:
    """Who writes a store may name any destination; bodies and signatures go to AWS all the same."""
    asked: list[tuple[str, object]] = []

    def answer(request: AWSPreparedRequest, **_: object) -> Any:
        asked.append((request.url, request.headers["X-Amz-Target"]))
        refusal = SimpleNamespace(stream=lambda: [b"{}"])
        return AWSResponse(request.url, 403, HTTPHeaders(), refusal)

    client = boto3.client(
        "sqs", region_name="eu-west-1", aws_access_key_id="k", aws_secret_access_key="s"
    )
    client.meta.events.register("before-send.sqs", answer)
    message = a_message("m", 0, to="https://sqs.evil.example/123456789012/orders", body=b"secret")
    queues = SqsQueues(client)
    queues.broker_clock.observe(1)
    outbox = SqsOutbox(queues, Endpoint.parse("orders"))
    (failure,) = outbox.send([message])
    outbox.close()
    assert isinstance(failure, Failure)
    target = b"AmazonSQS.SendMessage"
    assert set(asked) == {("https://sqs.eu-west-1.amazonaws.com/", target)}


def test_its_numbers_are_the_codes() -> None:
    """Limits stand once in the code; the page repeats them."""
    assert f"maximal concurrency ({DEFAULT_MAX_CONCURRENCY} by default)" in TEXT
    assert f"error queue for up to {MAX_RETENTION_SECONDS // 86_400} days" in TEXT
    assert MAX_DUE_MS // 1000 == 253_402_300_799, "the end of the year 9999"


def test_what_it_names_exists() -> None:
    """Pages and headings it links, files and targets it names."""
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        page, _, anchor = link.partition("#")
        assert not page or (ROOT / page).is_file(), link
        text = (ROOT / page).read_text() if page else TEXT
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^a-z -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors, link
    for name in re.findall(r"`((?:tests|sqsdelay|docs)/[^`]+|[a-z-]+\.(?:txt|json|toml))`", TEXT):
        assert (ROOT / name).is_file(), name
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z-]+)`", TEXT))
    assert {"setup", "audit"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
