"""Requests by libcurl, where a setting asks for it: a fifth of the processor time of botocore's own HTTP and
signing.

botocore stays in charge. It puts each request together, and reads what libcurl cannot; whatever goes
wrong is its to try again, to translate and to report.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from botocore.awsrequest import AWSResponse
from botocore.httpsession import get_cert_path
from botocore.session import Session

from sqsdelay.core.delay import Clock, SystemClock
from sqsdelay.core.readable import one_line
from sqsdelay.ports import in_each_child

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

logger = logging.getLogger(__name__)

ACTIONS: Final = (
    "ReceiveMessage",
    "SendMessageBatch",
    "DeleteMessageBatch",
    "ChangeMessageVisibilityBatch",
)
"""What a worker does all day long."""

HOOKS: Final = ("request-created", "before-sign", "before-send", "response-received", "needs-retry")
"""botocore's events below ``before-parameter-build`` and ``before-call``: of its own requests only."""

PAUSE_SECONDS: Final = 5.0
"""How long botocore makes all requests once one has failed: long enough that an outage costs few
attempts more, short enough that a lost connection does not slow a worker down."""

_LEAST_LIBCURL: Final = 0x080000
"""Earlier ones left headers out of what they sign. Source: curl's changes of 7.86 to 7.88."""


def request_by_curl(client: SQSClient, pace: Any = None) -> str | None:
    """Let libcurl make this client's requests, as far as it can; or say what is in the way, and the remedy:
    botocore goes on making them. None for nothing. ``pace``: its ``wait()`` is called before each request of
    libcurl's, as botocore's event before-send is for its own, and ``refused(code)`` where SQS refused one;
    botocore, which then makes it again, does not know of it."""
    in_the_way = _missing() or _proxy(client) or _hook(client)
    if in_the_way is None:
        requests = _Requests(client, pace)
        for action in ACTIONS:
            client.meta.events.register_last(f"before-call.sqs.{action}", requests.answer)
    return in_the_way


@functools.cache
def _missing() -> str | None:
    try:
        import pycurl
    except ImportError:
        return "pycurl is not installed; pip install 'sqsdelay[curl]'"
    _, version, number, *_ = pycurl.version_info()
    if not hasattr(pycurl, "AWS_SIGV4") or number < _LEAST_LIBCURL:
        return (
            f"pycurl has libcurl {version}, 8.0 or newer is needed; pip install -U 'sqsdelay[curl]'"
        )
    return None


def _proxy(client: SQSClient) -> str | None:
    """The proxy that SQS is reached through: libcurl would go past it."""
    config: Any = client.meta.config
    at = urlsplit(client.meta.endpoint_url)
    proxies = getproxies() if config.proxies is None else config.proxies
    # botocore knows no proxy for all schemes.
    if not proxies.get(at.scheme) or (config.proxies is None and proxy_bypass(at.netloc)):
        return None
    return f"SQS is reached through the proxy of {at.scheme}; add {at.hostname} to NO_PROXY"


def _hook(client: SQSClient) -> str | None:
    """A handler of somebody's that would never see the requests that libcurl makes."""
    events: Any = client.meta.events
    # botocore has no public way to ask who listens.
    listening = getattr(events, "_emitter", events)._handlers
    for event in HOOKS:
        for action in ACTIONS:
            for handler in listening.prefix_search(f"{event}.sqs.{action}"):
                told = getattr(handler, "func", handler)  # of a partial
                kind = told if hasattr(told, "__qualname__") else type(told)
                name = f"{kind.__module__}.{kind.__qualname__}"
                if name.partition(".")[0] not in ("botocore", "boto3", "sqsdelay"):
                    return f"{name} listens to {event}, and libcurl's requests have no such event"
    return None


class _Requests:
    """A client's requests. Thread-safe: each request has a connection to itself, and keeps it open."""

    def __init__(self, client: SQSClient, pace: Any, clock: Clock | None = None) -> None:
        config: Any = client.meta.config
        self._pace = pace
        self._connect_ms = round(config.connect_timeout * 1000)
        self._whole_ms = self._connect_ms + round(config.read_timeout * 1000)
        self._bundle = Session().get_config_variable("ca_bundle") or get_cert_path(True)
        self._clock = clock or SystemClock()
        self._paused_until = 0.0
        self._idle: deque[Any] = deque()
        self._inherited: list[Any] = []
        in_each_child(self, _Requests._begin_anew)

    def _begin_anew(self) -> None:
        """The connections are the parent's: closed here, they would be closed there."""
        self._inherited += self._idle
        self._idle = deque()

    def answer(
        self, params: Mapping[str, Any], request_signer: Any, context: Mapping[str, Any], **_: Any
    ) -> Any:  # Types of botocore's know no handler that answers.
        """The answer to a request that botocore has put together; None leaves it to botocore."""
        if self._clock.monotonic() < self._paused_until:
            return None
        signing = context.get("signing", {})
        region = signing.get("region", request_signer.region_name)
        service = signing.get("signing_name", request_signer.signing_name)
        if request_signer.signature_version != "v4" or context.get("auth_type") not in (None, "v4"):
            return None
        credentials = request_signer.get_auth_instance(service, region, "v4").credentials
        if credentials is None:
            return None
        if self._pace is not None:
            self._pace.wait()
        try:
            status, headers, body = self._made(params, credentials, f"aws:amz:{region}:{service}")
            answer = json.loads(body) if status == 200 or self._pace else {}
            if status != 200 and self._pace is not None:
                self._pace.refused(str(answer.get("__type")).rpartition("#")[2])
            if status != 200 or not isinstance(answer, dict):
                raise _NoAnswer(f"HTTP status {status}")
            _decode_binary(answer)
        except (_NoAnswer, AttributeError, LookupError, TypeError, ValueError) as error:
            self._paused_until = self._clock.monotonic() + PAUSE_SECONDS
            logger.info("libcurl's request failed, botocore repeats it: %s", one_line(error))
            return None
        answer["ResponseMetadata"] = {
            "RequestId": headers.get("x-amzn-requestid", ""),
            "HTTPStatusCode": status,
            "HTTPHeaders": headers,
            "RetryAttempts": 0,
        }
        return AWSResponse(params["url"], status, cast(Any, headers), None), answer

    def _made(
        self, params: Mapping[str, Any], credentials: Any, scope: str
    ) -> tuple[int, dict[str, str], bytes]:
        import pycurl

        try:
            curl = self._idle.pop()
        except IndexError:
            curl = self._new()
        head: list[bytes] = []
        body: list[bytes] = []
        curl.setopt(pycurl.URL, params["url"])
        curl.setopt(pycurl.AWS_SIGV4, scope)
        curl.setopt(pycurl.USERNAME, credentials.access_key)
        curl.setopt(pycurl.PASSWORD, credentials.secret_key)
        curl.setopt(pycurl.USERAGENT, params["headers"].get("User-Agent", ""))
        curl.setopt(pycurl.HTTPHEADER, _header_lines(params["headers"], credentials.token))
        curl.setopt(pycurl.POSTFIELDS, params["body"])
        curl.setopt(pycurl.HEADERFUNCTION, head.append)
        curl.setopt(pycurl.WRITEFUNCTION, body.append)
        try:
            curl.perform()
        except pycurl.error as error:
            curl.close()
            raise _NoAnswer(str(error.args[-1])) from error
        status = curl.getinfo(pycurl.RESPONSE_CODE)
        self._idle.append(curl)
        return status, _headers(head), b"".join(body)

    def _new(self) -> Any:
        import pycurl

        curl = pycurl.Curl()
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, self._connect_ms)
        curl.setopt(pycurl.TIMEOUT_MS, self._whole_ms)
        curl.setopt(pycurl.CAINFO, self._bundle)
        curl.setopt(pycurl.PROXY, "")
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.NOSIGNAL, 1)  # They cannot be used in a thread.
        return curl


class _NoAnswer(Exception):
    """Nothing that is SQS's answer."""


def _header_lines(headers: Mapping[str, Any], token: str | None) -> list[str]:
    lines = [f"{name}: {value}" for name, value in headers.items() if name != "User-Agent"]
    if token:
        lines.append(f"X-Amz-Security-Token: {token}")
    # Nor does botocore wait to be told that it may send a large body.
    return [*lines, "Expect:"]


def _headers(lines: Iterable[bytes]) -> dict[str, str]:
    """Of the last answer: an interim one, such as "100 Continue", may come before it."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
        elif name.startswith("HTTP/"):
            found = {}
    return found


def _decode_binary(answer: Mapping[str, Any]) -> None:
    """Give binary attributes as botocore gives them."""
    for message in answer.get("Messages") or ():
        for attribute in (message.get("MessageAttributes") or {}).values():
            encoded = attribute.get("BinaryValue")
            if encoded is not None:
                attribute["BinaryValue"] = base64.b64decode(encoded)
