"""Requests by libcurl: signed and answered as botocore's own, and whatever goes wrong is botocore's."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import boto3
import botocore.handlers
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.credentials import Credentials, SSOProvider
from botocore.exceptions import ClientError, NoCredentialsError, SSLError

from sqsdelay import DelayConsumer
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.sqs import curl
from sqsdelay.testing import ManualClock
from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.network import Handler

QUEUE = "https://sqs.eu-west-1.amazonaws.com/1/orders"
DELETE: dict[str, Any] = {"QueueUrl": QUEUE, "Entries": [{"Id": "0", "ReceiptHandle": "r"}]}
DELETED = {"Successful": [{"Id": "0"}], "Failed": []}
OWN_HEADER = "amz-sdk-invocation-id"
"""Only botocore's own requests have it."""


class Server(ThreadingHTTPServer):
    """Keeps each request, and answers with what it is told, else with what a delete is answered with."""

    daemon_threads = True

    def __init__(self, handler: type[Handler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[tuple[dict[str, str], bytes, tuple[str, int]]] = []
        self.answers: list[tuple[int, bytes] | None] = []

    def by(self) -> list[str]:
        """Who made each request."""
        return ["botocore" if OWN_HEADER in headers else "curl" for headers, *_ in self.requests]


class Answers(Handler):
    server: Server

    def do_POST(self) -> None:
        body = self.read()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((headers, body, self.client_address))
        told = self.server.answers.pop(0) if self.server.answers else (200, json.dumps(DELETED))
        if told is None:
            self.close_connection = True
            return
        status, answer = told
        content = answer if isinstance(answer, bytes) else answer.encode()
        self.answer(content, status, **{"x-amzn-RequestId": "request-1"})


@pytest.fixture(autouse=True)
def nothing_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy, and neither moto nor Powertools, which listen wherever they have been imported."""
    monkeypatch.setattr(botocore.handlers, "BUILTIN_HANDLERS", _handlers_without_moto())
    monkeypatch.setattr(botocore, "_INITIALIZERS", [])
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    curl._missing.cache_clear()


def _handlers_without_moto() -> list[Any]:
    return [each for each in botocore.handlers.BUILTIN_HANDLERS if each[0] != "before-send"]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.shutdown()


def client_of(server: Server, **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "endpoint_url": server.url,
        "region_name": "eu-west-1",
        "aws_access_key_id": "AKIDEXAMPLE",
        "aws_secret_access_key": "se/cr+et:=",
        "config": Config(read_timeout=PATIENCE_SECONDS, retries={"total_max_attempts": 2}),
    }
    return boto3.client("sqs", **defaults | settings)


def curl_client(server: Server, **settings: Any) -> Any:
    client = client_of(server, **settings)
    assert curl.request_by_curl(client) is None
    return client


def signature_of(headers: dict[str, str], body: bytes, url: str, token: str | None) -> str:
    """What botocore signs the same request with."""
    signed = headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    request = AWSRequest("POST", f"{url}/", {name: headers[name] for name in signed}, body)
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials("AKIDEXAMPLE", "se/cr+et:=", token), "sqs", "eu-west-1")
    to_sign = auth.string_to_sign(request, auth.canonical_request(request))
    return str(auth.signature(to_sign, request))


@pytest.mark.parametrize("token", [None, "a//long+token=="])
@pytest.mark.parametrize("text", ["☀ x", "y" * 1_040_000])
def test_the_signature_is_botocores(server: Server, token: str | None, text: str) -> None:
    """With the keys of a role or without, for a small and for a large body."""
    client = curl_client(server, aws_session_token=token)
    entries = [{"Id": "0", "MessageBody": text}]
    client.send_message_batch(QueueUrl=QUEUE, Entries=entries)
    ((headers, body, _),) = server.requests
    assert server.by() == ["curl"]
    assert json.loads(body) == {"QueueUrl": QUEUE, "Entries": entries}
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-west-1/sqs/aws4_request" in headers["authorization"]
    assert headers.get("x-amz-security-token") == token
    assert headers["x-amz-target"] == "AmazonSQS.SendMessageBatch"
    assert "Boto3/" in headers["user-agent"]
    assert "expect" not in headers
    told = headers["authorization"].rpartition("Signature=")[2]
    assert told == signature_of(headers, body, server.url, token)


def test_the_answers_are_botocores(local_aws: LocalAws) -> None:
    """For each action, binary attributes and failed entries among them."""
    plain, quick = local_aws.client("sqs"), local_aws.client("sqs")
    assert curl.request_by_curl(quick) is None
    made: list[str] = []
    quick.meta.events.register("before-send.sqs", lambda request, **_: made.append(request.url))
    url = plain.create_queue(QueueName="by-curl")["QueueUrl"]
    attributes: Any = {
        "binary": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "text": {"DataType": "String", "StringValue": "☀"},
    }
    sends: Any = [{"Id": "0", "MessageBody": "☀", "MessageAttributes": attributes}]
    sent = quick.send_message_batch(QueueUrl=url, Entries=sends)["Successful"]

    def received(client: Any) -> Any:
        (message,) = client.receive_message(
            QueueUrl=url,
            VisibilityTimeout=0,
            AttributeNames=["SentTimestamp"],
            MessageAttributeNames=["All"],
        )["Messages"]
        return {name: value for name, value in message.items() if name != "ReceiptHandle"}

    assert received(quick) == received(plain)
    assert received(quick)["MessageAttributes"] == attributes
    assert received(quick)["MessageId"] == sent[0]["MessageId"]

    def settled(client: Any, call: str, **more: Any) -> Any:
        message = client.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"][0]
        entries = [
            {"Id": "good", "ReceiptHandle": message["ReceiptHandle"], **more},
            {"Id": "bad", "ReceiptHandle": "none of SQS's", **more},
        ]
        answer = getattr(client, call)(QueueUrl=url, Entries=entries)
        metadata = answer.pop("ResponseMetadata")
        assert metadata["HTTPStatusCode"] == 200
        assert metadata["RequestId"]
        return answer

    hide = "change_message_visibility_batch"
    assert settled(quick, hide, VisibilityTimeout=0) == settled(plain, hide, VisibilityTimeout=0)
    assert settled(quick, "delete_message_batch")["Successful"] == [{"Id": "good"}]
    nothing = quick.receive_message(QueueUrl=url, WaitTimeSeconds=0)
    assert "Messages" not in nothing
    assert made == []


GONE = json.dumps({"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "gone"}).encode()


@pytest.mark.parametrize(
    "trouble",
    [None, (503, b"{}"), (200, b"<html>sign in first</html>"), (200, b"[]"), (302, b"")],
    ids=["lost", "503", "html", "list", "redirect"],
)
def test_what_goes_wrong_botocore_does_again(
    server: Server, trouble: tuple[int, bytes] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all else for five seconds: an outage costs one attempt more, not one for each call."""
    clock = ManualClock()
    monkeypatch.setattr(curl, "SystemClock", lambda: clock)
    client = curl_client(server)
    server.answers.append(trouble)
    assert client.delete_message_batch(**DELETE)["Successful"] == DELETED["Successful"]
    client.delete_message_batch(**DELETE)
    assert server.by() == ["curl", "botocore", "botocore"]
    clock.advance(curl.PAUSE_SECONDS)
    client.delete_message_batch(**DELETE)
    assert server.by()[3:] == ["curl"]


def test_an_error_is_botocores(server: Server) -> None:
    """Its class, its code, its text: callers tell a missing queue from an outage by them."""
    client = curl_client(server)
    server.answers += [(400, GONE), (400, GONE)]
    with pytest.raises(client.exceptions.QueueDoesNotExist) as raised:
        client.delete_message_batch(**DELETE)
    assert isinstance(raised.value, ClientError)
    assert raised.value.response["Error"]["Code"] == "QueueDoesNotExist"


def test_each_attempt_is_paced_and_what_is_refused_is_told(server: Server) -> None:
    """Whoever makes it; an outage is no refusal."""
    client, pace = client_of(server), Mock()
    assert curl.request_by_curl(client, pace) is None
    throttled = json.dumps({"__type": "com.amazonaws.sqs#RequestThrottled"}).encode()
    server.answers += [(400, throttled), None]
    client.delete_message_batch(**DELETE)
    assert server.by() == ["curl", "botocore", "botocore"]
    assert pace.mock_calls == [call.wait(), call.refused("RequestThrottled")]


def test_a_connection_is_kept_open_and_no_others_is_used(server: Server) -> None:
    """Two threads have two; a forked child has its own, and leaves its parent's alone."""
    client = curl_client(server)
    for _ in range(3):
        client.delete_message_batch(**DELETE)
    assert len({port for *_, port in server.requests}) == 1
    child = os.fork()
    if not child:
        try:
            client.delete_message_batch(**DELETE)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    client.delete_message_batch(**DELETE)
    ports = [port for *_, port in server.requests]
    assert ports[:3] == [ports[0]] * 3 == [ports[4]] * 3
    assert ports[3] != ports[0]
    assert server.by() == ["curl"] * 5


def test_instrumentations_see_each_call(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of OpenTelemetry and X-Ray wrap this method, and read the answer's metadata."""
    seen: list[tuple[str, int, str, int]] = []
    call = BaseClient._make_api_call  # type: ignore[attr-defined]

    def wrapped(client: Any, action: str, params: Any) -> Any:
        answer = call(client, action, params)
        told = answer["ResponseMetadata"]
        seen.append((action, told["HTTPStatusCode"], told["RequestId"], told["RetryAttempts"]))
        return answer

    monkeypatch.setattr(BaseClient, "_make_api_call", wrapped)
    client = curl_client(server)
    client.delete_message_batch(**DELETE)
    assert server.by() == ["curl"]
    assert seen == [("DeleteMessageBatch", 200, "request-1", 0)]


def test_without_keys_the_error_is_botocores(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    keys = {"aws_access_key_id": None, "aws_secret_access_key": None}
    client = curl_client(server, **keys)
    with pytest.raises(NoCredentialsError):
        client.delete_message_batch(**DELETE)
    assert server.requests == []


class Keys(Handler):
    """Gives away keys as IMDS, SSO and STS do: others each time, for five minutes."""

    server: Server

    def do_PUT(self) -> None:
        self._answer("a token of IMDS's")

    def do_GET(self) -> None:
        if self.path.startswith("/federation/credentials"):
            key, secret, token, until = self._keys()
            expires = round(until.timestamp() * 1000)
            keys = {"accessKeyId": key, "secretAccessKey": secret, "sessionToken": token}
            self._answer(json.dumps({"roleCredentials": keys | {"expiration": expires}}))
        elif self.path.endswith("/security-credentials/"):
            self._answer("a-role")
        else:
            key, secret, token, until = self._keys()
            keys = {"AccessKeyId": key, "SecretAccessKey": secret, "Token": token}
            self._answer(json.dumps(keys | {"Expiration": f"{until:%Y-%m-%dT%H:%M:%SZ}"}))

    def do_POST(self) -> None:
        key, secret, token, until = self._keys()
        self._answer(
            "<AssumeRoleResponse><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>"
            f"<SessionToken>{token}</SessionToken><Expiration>{until.isoformat()}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )

    def _keys(self) -> tuple[str, str, str, datetime]:
        self.server.answers.append(None)
        number = len(self.server.answers)
        until = datetime.now(UTC) + timedelta(minutes=5)
        return f"AKID{number}", "secret", f"token-{number}", until

    def _answer(self, text: str) -> None:
        self.read()
        self.answer(text.encode())


START_URL = "https://example.awsapps.com/start"
PROFILES = f"""
[profile sso]
sso_start_url = {START_URL}
sso_region = eu-west-1
sso_account_id = 123456789012
sso_role_name = reader

[profile role]
role_arn = arn:aws:iam::123456789012:role/worker
credential_source = Environment

[profile imds]
region = eu-west-1
"""


@pytest.mark.parametrize(
    ("profile", "tokens"),
    [
        ("role", ["token-1", "token-2"]),
        ("sso", ["token-1", "token-2"]),
        # botocore keeps IMDS's keys for ten minutes at least.
        ("imds", ["token-1", "token-1"]),
    ],
)
def test_keys_of_a_role_are_fetched_and_renewed(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str, tokens: list[str]
) -> None:
    """Of an assumed role, of SSO and of an instance: botocore finds them, libcurl signs with them."""
    (tmp_path / "config").write_text(PROFILES)
    cached = tmp_path / f"{hashlib.sha1(START_URL.encode()).hexdigest()}.json"
    monkeypatch.setattr(SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(tmp_path))
    cached.write_text(json.dumps({"accessToken": "x", "expiresAt": "2999-01-01T00:00:00Z"}))
    with Server(Keys) as keys:
        threading.Thread(target=keys.serve_forever, args=(0.02,), daemon=True).start()
        for name, value in {
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": keys.url,
            "AWS_ENDPOINT_URL_SSO": keys.url,
            "AWS_ENDPOINT_URL_STS": keys.url,
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        monkeypatch.delenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", raising=False)
        if profile != "role":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        session = boto3.Session(profile_name=profile)
        client = session.client("sqs", endpoint_url=server.url, region_name="eu-west-1")
        assert curl.request_by_curl(client) is None
        for _ in tokens:
            client.delete_message_batch(**DELETE)
        keys.shutdown()
    assert server.by() == ["curl"] * len(tokens)
    assert [headers["x-amz-security-token"] for headers, *_ in server.requests] == tokens
    used = [headers["authorization"].split("Credential=")[1][:5] for headers, *_ in server.requests]
    assert used == [f"AKID{token[-1]}" for token in tokens]


def behind_a_proxy(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")


def without_pycurl(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    monkeypatch.setitem(sys.modules, "pycurl", None)


def heard(**_: Any) -> None:
    """A recorder's, a signer's, a fake AWS's."""


def hook(event: str) -> Callable[[pytest.MonkeyPatch, Any], None]:
    return lambda monkeypatch, client: client.meta.events.register(event, heard)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (behind_a_proxy, "add 127.0.0.1 to NO_PROXY"),
        (without_pycurl, "pip install 'sqsdelay[curl]'"),
        *((hook(f"{event}.sqs"), f"heard listens to {event}") for event in curl.HOOKS),
        (hook("before-send"), "heard listens to before-send"),
        (hook("before-sign.sqs.ReceiveMessage"), "heard listens to before-sign"),
    ],
)
def test_where_it_cannot_it_says_why_and_stands_aside(
    server: Server, monkeypatch: pytest.MonkeyPatch, case: Callable[..., None], words: str
) -> None:
    """A test's fake AWS gets the requests meant for it, and a proxy's user goes through the proxy."""
    client = client_of(server)
    case(monkeypatch, client)
    assert words in (curl.request_by_curl(client) or "")
    monkeypatch.setenv("NO_PROXY", "*")
    client.delete_message_batch(**DELETE)
    assert server.by() == ["botocore"]


@pytest.mark.parametrize(
    ("proxies", "no_proxy"),
    [
        ({}, "example.com"),
        ({"ALL_PROXY": "http://proxy:1"}, "example.com"),
        ({"HTTP_PROXY": "http://proxy:1"}, "127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy:1"}, "{address}"),
    ],
)
def test_a_proxy_that_is_not_on_the_way_is_none(
    server: Server, monkeypatch: pytest.MonkeyPatch, proxies: dict[str, str], no_proxy: str
) -> None:
    """NO_PROXY alone, a proxy that botocore does not know of, and one that exempts SQS, or its port."""
    exempt = no_proxy.format(address=server.url.removeprefix("http://"))
    for name, value in (proxies | {"NO_PROXY": exempt}).items():
        monkeypatch.setenv(name, value)
    curl_client(server).delete_message_batch(**DELETE)
    assert server.by() == ["curl"]


def test_a_workers_own_clients_use_it_when_told(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """pycurl may be there for kombu's sake. A client that is given is used as it is."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    caplog.set_level("INFO", "sqsdelay")
    chosen = DelayConsumer("orders", http="curl")
    chosen._queues.delete_batch(QUEUE, [])
    chosen._queues.receive_batch(QUEUE, wait_seconds=0)
    DelayConsumer("orders")._queues.receive_batch(QUEUE, wait_seconds=0)
    DelayConsumer("orders", client_of(server))._queues.receive_batch(QUEUE, wait_seconds=0)
    assert server.by() == ["curl", "curl", "botocore", "botocore"]
    assert caplog.messages == ["libcurl makes the requests", "botocore makes the requests"]


@pytest.mark.parametrize(("receivers", "told"), [(None, True), (8, False)])
def test_too_few_file_descriptors_are_told_of(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    receivers: int | None,
    told: bool,
) -> None:
    """Without one, a request fails as if SQS were away: who reads that must know why."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    DelayConsumer("orders", http="curl", receivers=receivers)
    assert ("ulimit -n is 64" in caplog.text) is told


def test_a_choice_that_cannot_be_kept_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than made otherwise in silence."""
    with pytest.raises(InvalidSetting, match="http='wget'; use 'botocore' or 'curl'"):
        DelayConsumer("orders", http="wget")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="leave client out"):
        DelayConsumer("orders", client_of(server), http="curl")
    monkeypatch.setitem(sys.modules, "pycurl", None)
    with pytest.raises(ConfigurationError, match="pycurl is not installed"):
        DelayConsumer("orders", http="curl")


def test_a_server_is_known_by_the_certificates_botocore_trusts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of AWS_CA_BUNDLE, where that is set, and no others."""
    made: list[str] = []
    with LocalAws({"USE_SSL": "1"}) as aws:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        queue = aws.client("sqs").create_queue(QueueName="tls")["QueueUrl"]

        def receive() -> None:
            client = boto3.client("sqs", config=Config(retries={"total_max_attempts": 1}))
            assert curl.request_by_curl(client) is None
            client.meta.events.register("before-send.sqs", lambda request, **_: made.append("x"))
            client.receive_message(QueueUrl=queue)

        receive()
        assert made == []
        monkeypatch.delenv("AWS_CA_BUNDLE")
        with pytest.raises(SSLError):
            receive()
        assert made == ["x"]
