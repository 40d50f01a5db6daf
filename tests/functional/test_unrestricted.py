"""`unrestricted` clients on moto: any delay, boto3's answers, and all else as it was."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError, ParamValidationError
from botocore.stub import ANY, Stubber
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.models import sqs_backends

from sqsdelay import FileLedger, errors, unrestricted
from sqsdelay.core.delay import SystemClock
from sqsdelay.s3 import Bucket
from sqsdelay.testing import InMemoryStore
from tests.services.endpoints import create_endpoint

YEAR = 31_536_000
LATE = {"MessageBody": "x", "DelaySeconds": YEAR}
ATTRIBUTES = {
    "kind": {"DataType": "String", "StringValue": "reminder"},
    "count": {"DataType": "Number.int", "StringValue": "3"},
    "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}
TRACE = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5-x"}}


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def waiting(queue: str) -> list[Any]:
    """What lies in one of moto's queues, visible or not."""
    return list(sqs_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].queues[queue]._messages)


class Shop:
    """A standard and a FIFO endpoint on moto, and the requests that reach it."""

    def __init__(self) -> None:
        self.client: Any = boto3.client("sqs")
        for name in ("orders", "payments.fifo"):
            create_endpoint(self.client, name)
        self.url = self.url_of("orders")
        self.fifo_url = self.url_of("payments.fifo")
        self.requests: list[tuple[str, bytes]] = []
        self.client.meta.events.register("before-send.sqs", self._note)

    def _note(self, request: Any, **_: Any) -> None:
        self.requests.append((request.headers["X-Amz-Target"].decode(), request.body))

    def url_of(self, name: str) -> str:
        return str(self.client.get_queue_url(QueueName=name)["QueueUrl"])

    def sends(self) -> list[str]:
        return [target for target, _ in self.requests if "SendMessage" in target]


@pytest.fixture
def shop() -> Iterator[Shop]:
    with mock_aws():
        yield Shop()


@pytest.fixture
def sqs(shop: Shop) -> Any:
    return unrestricted(shop.client)


def test_a_year_goes_to_the_delay_queue_and_is_answered_as_boto3_does(shop: Shop, sqs: Any) -> None:
    """Same fields as a direct send, same MD5s for the same message; one more field has our id."""
    given = {
        "QueueUrl": shop.url,
        "MessageBody": "grüße",
        "MessageAttributes": ATTRIBUTES,
        "MessageSystemAttributes": TRACE,
    }
    direct = shop.client.send_message(**given)
    delayed = sqs.send_message(**given, DelaySeconds=YEAR)
    (copy,) = waiting("orders-delay.fifo")
    assert copy.message_attributes["NServiceBus.AmazonSQS.DelaySeconds"]["StringValue"] == str(YEAR)
    assert delayed.pop("sqsdelay.MessageId") == copy.group_id
    assert delayed.pop("MessageId") == copy.id
    assert delayed.pop("SequenceNumber") == copy.sequence_number
    assert delayed["ResponseMetadata"].keys() == direct["ResponseMetadata"].keys()
    assert delayed["ResponseMetadata"]["HTTPStatusCode"] == 200
    md5s = {name: value for name, value in direct.items() if name.startswith("MD5")}
    assert len(md5s) >= 2
    assert {k: v for k, v in delayed.items() if k != "ResponseMetadata"} == md5s


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"DelaySeconds": 0},
        {"DelaySeconds": 900},
        {"DelaySeconds": 5, "MessageAttributes": ATTRIBUTES, "MessageSystemAttributes": TRACE},
    ],
)
def test_what_a_message_timer_holds_is_the_same_request(
    shop: Shop, sqs: Any, part: dict[str, Any]
) -> None:
    """Up to 900 s not a byte differs, and nothing more is asked."""
    for client in (shop.client, sqs):
        client.send_message(QueueUrl=shop.url, MessageBody="x", **part)
        client.send_message_batch(
            QueueUrl=shop.url, Entries=[{"Id": "a", "MessageBody": "x", **part}]
        )
    assert len(shop.requests) == 4
    assert shop.requests[:2] == shop.requests[2:]


@pytest.mark.parametrize(
    "arguments",
    [
        {"DelaySeconds": "901"},
        {"DelaySeconds": 901.5},
        {"DelaySeconds": YEAR, "MessageBody": 1},
        {"DelaySeconds": YEAR, "Priority": 3},
        {"DelaySeconds": YEAR, "MessageAttributes": {"a": {"StringValue": "x"}}},
        {"DelaySeconds": YEAR, "QueueUrl": None},
    ],
)
def test_what_boto3_refuses_it_refuses_the_same_way(
    shop: Shop, sqs: Any, arguments: dict[str, Any]
) -> None:
    """The same error with the same words, alone and in a batch."""
    given = {"QueueUrl": shop.url, "MessageBody": "x"} | arguments
    url = given["QueueUrl"]
    entries = [{"Id": "a"} | {name: part for name, part in given.items() if name != "QueueUrl"}]
    told = []
    for client in (shop.client, sqs):
        with pytest.raises(ParamValidationError) as refused:
            client.send_message(**given)
        told.append(str(refused.value))
        with pytest.raises(ParamValidationError) as refused:
            client.send_message_batch(QueueUrl=url, Entries=entries)
        told.append(str(refused.value))
    assert told[:2] == told[2:]


def test_positional_arguments_are_refused_as_by_boto3(sqs: Any) -> None:
    """boto3's methods take keywords only, whatever else is given."""
    wrongs: list[Callable[[], Any]] = [
        lambda: sqs.send_message("url", "body"),
        lambda: sqs.send_message("body", QueueUrl="url", **LATE),
        lambda: sqs.send_message_batch("url", QueueUrl="url", Entries=[{"Id": "1", **LATE}]),
    ]
    for wrong in wrongs:
        with pytest.raises(TypeError, match="only accepts keyword arguments"):
            wrong()


def test_a_mixed_batch_is_two_requests_and_one_answer(shop: Shop, sqs: Any) -> None:
    """Direct entries in one, delayed ones in another; the answer is in the order given."""
    entries = [
        {"Id": f"e{n}", "MessageBody": f"b{n}", "DelaySeconds": YEAR if n % 3 == 0 else n}
        for n in range(10)
    ]
    answer = sqs.send_message_batch(QueueUrl=shop.url, Entries=entries)
    assert shop.sends() == ["AmazonSQS.SendMessageBatch"] * 2
    assert [done["Id"] for done in answer["Successful"]] == [entry["Id"] for entry in entries]
    assert [done["MD5OfMessageBody"] for done in answer["Successful"]] == [
        md5(f"b{n}") for n in range(10)
    ]
    assert [n for n, done in enumerate(answer["Successful"]) if "sqsdelay.MessageId" in done] == [
        0, 3, 6, 9,
    ]  # fmt: skip
    assert "Failed" not in answer
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert len(waiting("orders")) == 6
    assert len(waiting("orders-delay.fifo")) == 4


def test_one_bad_entry_fails_alone(shop: Shop, sqs: Any) -> None:
    """Told in ``Failed``, with SQS's code; the others are sent."""
    name = {"aws.mine": {"DataType": "String", "StringValue": "x"}}
    system = {"Mine": TRACE["AWSTraceHeader"]}
    given = [
        LATE | {"Id": "bad", "MessageAttributes": name},
        LATE | {"Id": "worse", "MessageBody": "\x00"},
        LATE | {"Id": "system", "MessageSystemAttributes": system},
        LATE | {"Id": "good"},
        {"Id": "now", "MessageBody": "x"},
    ]
    answer = sqs.send_message_batch(QueueUrl=shop.url, Entries=given)
    assert [done["Id"] for done in answer["Successful"]] == ["good", "now"]
    told = [(f["Id"], f["Code"], f["SenderFault"]) for f in answer["Failed"]]
    assert told == [
        ("bad", "InvalidParameterValue", True),
        ("worse", "InvalidMessageContents", True),
        ("system", "InvalidParameterValue", True),
    ]
    assert "'Mine'" in answer["Failed"][2]["Message"]
    assert "has a prefix reserved for AWS" in answer["Failed"][0]["Message"]


def entries(*ids: str, body: str = "x", delay: int = YEAR) -> list[dict[str, Any]]:
    return [{"Id": i, "MessageBody": body, "DelaySeconds": delay} for i in ids]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (entries(*map(str, range(11))), "TooManyEntriesInBatchRequest"),
        (entries("a", "a"), "BatchEntryIdsNotDistinct"),
        (entries("a b"), "InvalidBatchEntryId"),
        (entries("x" * 81), "InvalidBatchEntryId"),
        (entries("a", "b", body="x" * 524_289), "BatchRequestTooLong"),
    ],
)
def test_a_batch_sqs_refuses_as_a_whole_is_refused_with_its_code(
    shop: Shop, sqs: Any, given: list[dict[str, Any]], error: str
) -> None:
    """Caught by the client's own exception class; though each part could pass, nothing is sent."""
    # The first entry is direct: split in two, both parts would be fine.
    mixed = [given[0] | {"DelaySeconds": 0}, *given[1:]] if len(given) > 1 else given
    for batch in (given, mixed):
        with pytest.raises(getattr(shop.client.exceptions, error)) as refused:
            sqs.send_message_batch(QueueUrl=shop.url, Entries=batch)
        told = refused.value.response["Error"]
        assert told["Code"] == f"AWS.SimpleQueueService.{error}"
        assert refused.value.operation_name == "SendMessageBatch"
    assert shop.requests == []


def test_the_codes_are_those_of_the_server(shop: Shop, sqs: Any) -> None:
    """What a batch without delays is refused with, a delayed one is too."""
    for given in (entries(*map(str, range(11))), entries("a", "a"), entries("a b")):
        codes = []
        for delay in (0, YEAR):
            with pytest.raises(ClientError) as refused:
                sqs.send_message_batch(
                    QueueUrl=shop.url, Entries=[e | {"DelaySeconds": delay} for e in given]
                )
            codes.append(refused.value.response["Error"]["Code"])
        assert codes[0] == codes[1]
    with pytest.raises(ClientError, match="EmptyBatchRequest"):
        sqs.send_message_batch(QueueUrl=shop.url, Entries=[])


def test_without_a_delay_queue_the_error_says_how_to_make_one(shop: Shop, sqs: Any) -> None:
    """boto3's class for a missing queue, with our words; in a mixed batch the rest is sent."""
    url = shop.client.create_queue(QueueName="bare")["QueueUrl"]
    late = LATE | {"Id": "late"}
    sends: list[Callable[[], Any]] = [
        lambda: sqs.send_message(QueueUrl=url, **LATE),
        lambda: sqs.send_message_batch(QueueUrl=url, Entries=[late, late | {"Id": "later"}]),
    ]
    for send in sends:
        with pytest.raises(shop.client.exceptions.QueueDoesNotExist) as refused:
            send()
        assert refused.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
        assert "sqsdelay endpoint create bare" in str(refused.value)
        assert isinstance(refused.value.__cause__, errors.DelayQueueMissing)
    now = {"Id": "now", "MessageBody": "x"}
    answer = sqs.send_message_batch(QueueUrl=url, Entries=[late, now])
    assert [done["Id"] for done in answer["Successful"]] == ["now"]
    assert [(f["Id"], f["Code"]) for f in answer["Failed"]] == [
        ("late", "AWS.SimpleQueueService.NonExistentQueue")
    ]


def traced(header: dict[str, Any]) -> dict[str, Any]:
    return {"MessageSystemAttributes": {"AWSTraceHeader": header}}


@pytest.mark.parametrize(
    ("part", "code", "words"),
    [
        ({"MessageBody": "x\x00"}, "InvalidMessageContents", "U\\+0000"),
        ({"MessageBody": "x" * 1_048_576}, "InvalidParameterValue", "the limit is 1048576"),
        ({"MessageDeduplicationId": "d"}, "InvalidParameterValue", "is for FIFO queues"),
        ({"MessageSystemAttributes": {"Mine": TRACE["AWSTraceHeader"]}}, "InvalidParameterValue", "'Mine'"),
        (traced({"DataType": "Binary", "BinaryValue": b"x"}), "InvalidParameterValue", "as a String"),
        (traced({"DataType": "String", "StringValue": "\ud800"}), "InvalidParameterValue", "U\\+D800"),
        ({"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/orders"}, "InvalidParameterValue", "eu-west-1"),
        ({"QueueUrl": "http://x/no.name"}, "InvalidParameterValue", "is not a queue name"),
        ({"DelaySeconds": 10**12}, "InvalidParameterValue", "9999"),
    ],
)  # fmt: skip
def test_an_error_of_ours_is_a_client_error(
    shop: Shop, sqs: Any, part: dict[str, Any], code: str, words: str
) -> None:
    """With the code SQS gives for the like, so that handlers written for boto3 work."""
    given = {"QueueUrl": shop.url} | LATE | part
    with pytest.raises(ClientError, match=words) as refused:
        sqs.send_message(**given)
    assert refused.value.response["Error"]["Code"] == code
    assert isinstance(refused.value.__cause__, ValueError)
    assert shop.sends() == []


@pytest.mark.parametrize(
    "error", [errors.SchemaMismatch("table t"), errors.StoreMissing("table t")]
)
def test_a_store_that_cannot_be_used_is_no_outage(shop: Shop, error: errors.StoreError) -> None:
    """Who retries what is unavailable, as boto3 does, would retry this for ever."""

    class Store(InMemoryStore):
        def store(self, *_: Any, **__: Any) -> list[bool]:
            raise error

    sqs = unrestricted(shop.client, store=Store(SystemClock()))
    with pytest.raises(sqs.exceptions.UnsupportedOperation, match="table t") as refused:
        sqs.send_message(QueueUrl=shop.url, **LATE)
    response = refused.value.response
    assert response["Error"]["Code"] == "AWS.SimpleQueueService.UnsupportedOperation"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert repr(refused.value.__cause__) == repr(error)
    entries = [{"Id": "late", **LATE}, {"Id": "now", "MessageBody": "x"}]
    (failed,) = sqs.send_message_batch(QueueUrl=shop.url, Entries=entries)["Failed"]
    assert (failed["Code"], failed["SenderFault"]) == (response["Error"]["Code"], True)


def test_what_sqs_refuses_is_raised_as_boto3_raised_it(shop: Shop, sqs: Any) -> None:
    """Denied access keeps its code, a lost connection its class."""
    with Stubber(shop.client) as stub:
        stub_lookups(stub)
        stub.add_client_error("send_message", "AccessDenied", "no", http_status_code=403)
        with pytest.raises(ClientError, match="AccessDenied") as refused:
            sqs.send_message(QueueUrl=shop.url, **LATE)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    once = Config(retries={"total_max_attempts": 1})
    nowhere = boto3.client("sqs", endpoint_url="http://127.0.0.1:1", config=once)
    with pytest.raises(EndpointConnectionError):
        unrestricted(nowhere).send_message(
            QueueUrl="http://127.0.0.1:1/1/orders", MessageBody="x", DelaySeconds=YEAR
        )


def stub_lookups(stub: Stubber) -> None:
    """What is asked once for an endpoint: has it a twin, and where is its delay queue."""
    due, delay = (
        {"QueueName": name, "QueueOwnerAWSAccountId": DEFAULT_ACCOUNT_ID}
        for name in ("orders-due", "orders-delay.fifo")
    )
    stub.add_client_error("get_queue_url", "QueueDoesNotExist", expected_params=due)
    stub.add_response("get_queue_url", {"QueueUrl": "http://x/1/orders-delay.fifo"}, delay)


@pytest.mark.parametrize("around_the_given", [True, False], ids=["given", "unrestricted"])
def test_botocores_stubber_works_around_either_client(
    shop: Shop, sqs: Any, around_the_given: bool
) -> None:
    """Expected parameters are checked, answers come back; a delay adds two lookups once."""
    stubbed = {"MessageId": "s-1", "MD5OfMessageBody": md5("x")}
    with Stubber(shop.client if around_the_given else sqs) as stub:
        expected = {"QueueUrl": shop.url, "MessageBody": "x", "DelaySeconds": 900}
        stub.add_response("send_message", stubbed, expected)
        assert sqs.send_message(**expected) == stubbed
        stub_lookups(stub)
        names = ("MessageAttributes", "MessageGroupId", "MessageDeduplicationId")
        hop = {"QueueUrl": "http://x/1/orders-delay.fifo", "MessageBody": "x"}
        for _ in range(2):
            stub.add_response("send_message", stubbed, hop | dict.fromkeys(names, ANY))
            answer = sqs.send_message(**expected | {"DelaySeconds": 901})
            assert (answer["MessageId"], answer["MD5OfMessageBody"]) == ("s-1", md5("x"))
        stub.assert_no_pending_responses()
    assert shop.requests == []


def test_everything_else_is_the_given_clients(shop: Shop, sqs: Any) -> None:
    """An SQS client by class, with the same settings, hooks, exceptions, paginators and methods."""
    assert isinstance(sqs, type(shop.client))
    assert issubclass(type(sqs), BaseClient)
    assert sqs.meta is shop.client.meta
    assert sqs.exceptions.QueueDoesNotExist is shop.client.exceptions.QueueDoesNotExist
    assert sqs.waiter_names == shop.client.waiter_names
    assert sqs.can_paginate("list_queues")
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix="orders")
    assert {url for page in pages for url in page["QueueUrls"]} == {
        shop.url_of(name) for name in ("orders", "orders-delay.fifo", "orders-delay-error")
    }
    assert set(dir(shop.client)) <= set(dir(sqs))
    with pytest.raises(AttributeError, match="no_such_call"):
        sqs.no_such_call()
    sqs.send_message(QueueUrl=shop.url, MessageBody="x")
    (message,) = sqs.receive_message(QueueUrl=shop.url)["Messages"]
    sqs.delete_message(QueueUrl=shop.url, ReceiptHandle=message["ReceiptHandle"])


def test_an_unrestricted_client_gets_the_new_settings(shop: Shop, sqs: Any) -> None:
    """Twice is once: the second store is the one that counts, and the first client keeps its own."""
    store = InMemoryStore(SystemClock())
    again = unrestricted(sqs, store=store)
    again.send_message(QueueUrl=shop.url, MessageBody="parked", DelaySeconds=YEAR)
    sqs.send_message(QueueUrl=shop.url, MessageBody="relayed", DelaySeconds=YEAR)
    assert [kept.body for kept in store.pending(2)] == [b"parked"]
    assert [copy.body for copy in waiting("orders-delay.fifo")] == ["relayed"]


def test_the_given_client_and_its_class_are_not_touched(shop: Shop) -> None:
    """Nothing is patched: not the instance, not its class, not boto3."""
    assert shop.client.exceptions  # made by boto3 when they are first asked for
    before = dict(vars(shop.client)), dict(vars(type(shop.client))), type(shop.client)
    base = dict(vars(BaseClient))
    sqs = unrestricted(shop.client)
    sqs.send_message(QueueUrl=shop.url, **LATE)
    after = dict(vars(shop.client)), dict(vars(type(shop.client))), type(shop.client)
    assert after == before
    assert dict(vars(BaseClient)) == base
    with pytest.raises(ClientError, match="DelaySeconds"):
        shop.client.send_message(QueueUrl=shop.url, **LATE)


def test_event_hooks_see_what_is_sent(shop: Shop, sqs: Any) -> None:
    """A hook on either client runs for every request, those of delayed messages included."""
    seen: list[str] = []
    sqs.meta.events.register(
        "before-parameter-build.sqs.SendMessage",
        lambda params, **_: seen.append(params["QueueUrl"]),
    )
    sqs.send_message(QueueUrl=shop.url, MessageBody="x")
    sqs.send_message(QueueUrl=shop.url, **LATE)
    assert seen == [shop.url, shop.url_of("orders-delay.fifo")]


def test_many_threads_share_one_client(shop: Shop, sqs: Any) -> None:
    """Each gets the answer to what it sent itself."""

    def send(n: int) -> tuple[str, str]:
        answer = sqs.send_message(QueueUrl=shop.url, MessageBody=f"{n}", DelaySeconds=YEAR)
        assert answer["MD5OfMessageBody"] == md5(f"{n}")
        return answer["MessageId"], answer["sqsdelay.MessageId"]

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(send, range(80)))
    copies = {copy.id: copy for copy in waiting("orders-delay.fifo")}
    assert [(copies[sqs_id].body, copies[sqs_id].group_id) for sqs_id, _ in told] == [
        (f"{n}", message_id) for n, (_, message_id) in enumerate(told)
    ]


def test_it_pickles_as_little_as_any_boto3_client(shop: Shop, sqs: Any) -> None:
    """Processes make their own client, with or without sqsdelay."""
    for client in (shop.client, sqs):
        with pytest.raises(pickle.PicklingError, match="Can't pickle"):
            pickle.dumps(client)


def test_binary_values_may_be_all_that_boto3_takes(shop: Shop, sqs: Any) -> None:
    """bytes, bytearrays, text and open files, as in a direct send; each is read once."""
    for value in (b"ab", bytearray(b"ab"), "ab", io.BytesIO(b"ab")):
        attributes = {"raw": {"DataType": "Binary", "BinaryValue": value}}
        entry = {"MessageBody": "x", "MessageAttributes": attributes}
        batch = [entry | {"Id": "a", "DelaySeconds": YEAR}]
        answer = sqs.send_message_batch(QueueUrl=shop.url, Entries=batch)
        copy = waiting("orders-delay.fifo")[-1]
        assert copy.message_attributes["raw"]["BinaryValue"] == b"ab"
        plain = {"raw": {"DataType": "Binary", "BinaryValue": b"ab"}}
        given = {"QueueUrl": shop.url, "MessageBody": "x", "MessageAttributes": plain}
        name = "MD5OfMessageAttributes"
        assert answer["Successful"][0][name] == shop.client.send_message(**given)[name]


def test_a_fifo_queue_takes_delays_per_message(shop: Shop, sqs: Any) -> None:
    """SQS refuses any there. A short one goes by the due queue, a long one by the delay queue."""
    given = {"QueueUrl": shop.fifo_url, "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sqs.send_message(**given, MessageBody="now")
    sqs.send_message(**given, MessageBody="soon", DelaySeconds=5)
    sqs.send_message(**given, MessageBody="late", DelaySeconds=YEAR)
    queues = {"payments.fifo": "now", "payments-due": "soon", "payments-delay.fifo": "late"}
    for queue, body in queues.items():
        assert [copy.body for copy in waiting(queue)] == [body]
    (late,) = waiting("payments-delay.fifo")
    assert late.message_attributes["sqsdelay.MessageDeduplicationId"]["StringValue"] == "d"


def test_a_fifo_message_without_an_id_is_deduplicated_by_its_content(shop: Shop, sqs: Any) -> None:
    """As SQS does on a queue with content-based deduplication: by the body's SHA-256."""
    sqs.send_message(QueueUrl=shop.fifo_url, MessageBody="x", MessageGroupId="g", DelaySeconds=YEAR)
    (late,) = waiting("payments-delay.fifo")
    given = late.message_attributes["sqsdelay.MessageDeduplicationId"]["StringValue"]
    assert given == hashlib.sha256(b"x").hexdigest()
    with pytest.raises(shop.client.exceptions.InvalidMessageContents, match="U\\+D800"):
        sqs.send_message(
            QueueUrl=shop.fifo_url, MessageBody="\ud800", MessageGroupId="g", DelaySeconds=YEAR
        )


def test_a_parked_message_is_answered_with_the_id_it_has_in_the_store(shop: Shop) -> None:
    """SQS has not seen it: the id is ours, the MD5s are those SQS will have for it."""
    store = InMemoryStore(SystemClock())
    sqs = unrestricted(shop.client, store=store)
    given = {"QueueUrl": shop.url, "MessageBody": "x", "MessageAttributes": ATTRIBUTES}
    answer = sqs.send_message(**given, DelaySeconds=YEAR)
    (kept,) = store.pending(1)
    assert answer["MessageId"] == answer["sqsdelay.MessageId"] == kept.message_id
    direct = shop.client.send_message(**given)
    for name in ("MD5OfMessageBody", "MD5OfMessageAttributes"):
        assert answer[name] == direct[name]
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert waiting("orders-delay.fifo") == []


def test_a_ledger_has_the_delayed_messages(shop: Shop, tmp_path: Path) -> None:
    """With the id of the answer; direct messages are boto3's own and not in it."""
    sqs = unrestricted(shop.client, ledger=FileLedger(tmp_path / "ledger.jsonl"))
    sqs.send_message(QueueUrl=shop.url, MessageBody="x")
    answer = sqs.send_message(QueueUrl=shop.url, **LATE)
    (event,) = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    told = event["event"], event["route"], event["message_id"], event["sqs_message_id"]
    assert told == ("sent", "delay-queue", answer["sqsdelay.MessageId"], answer["MessageId"])


def test_a_large_body_is_answered_with_its_own_md5(shop: Shop) -> None:
    """SQS gets a pointer; who verifies the answer knows the body only."""
    boto3.client("s3").create_bucket(Bucket="bodies")
    sqs = unrestricted(shop.client, large_bodies=Bucket("bodies"))
    body = "x" * 2_000_000
    answer = sqs.send_message(QueueUrl=shop.url, MessageBody=body, DelaySeconds=YEAR)
    assert answer["MD5OfMessageBody"] == md5(body)
    assert "MD5OfMessageAttributes" not in answer
    batch = [
        {"Id": "a", "MessageBody": body, "DelaySeconds": YEAR},
        {"Id": "b", "MessageBody": "x"},
    ]
    told = sqs.send_message_batch(QueueUrl=shop.url, Entries=batch)["Successful"]
    assert [done["MD5OfMessageBody"] for done in told] == [md5(body), md5("x")]
    copies = waiting("orders-delay.fifo")
    assert ["s3BucketName" in copy.body for copy in copies] == [True, True]


def test_an_md5_that_does_not_fit_what_was_sent_is_passed_on(shop: Shop, sqs: Any) -> None:
    """A client that verifies finds out that SQS got something else."""

    def corrupt(parsed: dict[str, Any], **_: Any) -> None:
        parsed["MD5OfMessageBody"] = md5("y")

    shop.client.meta.events.register("after-call.sqs.SendMessage", corrupt)
    answer = sqs.send_message(QueueUrl=shop.url, **LATE)
    assert answer["MD5OfMessageBody"] == md5("y")


def test_resources_send_any_delay(shop: Shop) -> None:
    """A queue reached from the service, or a queue itself; the given resource stays as it was."""
    given: Any = boto3.resource("sqs")
    client = given.meta.client
    service = unrestricted(given)
    loaded = given.Queue(shop.url)
    loaded.load()
    queues = [
        service.get_queue_by_name(QueueName="orders"),
        service.Queue(shop.url),
        next(queue for queue in service.queues.all() if queue.url == shop.url),
        unrestricted(loaded),
    ]
    for queue in queues:
        assert queue.send_message(**LATE)["MD5OfMessageBody"] == md5("x")
        answer = queue.send_messages(Entries=entries("a", "b") + entries("c", delay=0))
        assert [done["Id"] for done in answer["Successful"]] == ["a", "b", "c"]
    assert len(waiting("orders-delay.fifo")) == 4 * 3
    assert len(waiting("orders")) == 4
    assert queues[3].attributes["QueueArn"].endswith(":orders")
    assert isinstance(queues[3], type(loaded))
    assert given.meta.client is client
    assert loaded.meta.client is client


def test_only_sqs_clients_can_be_unrestricted(shop: Shop) -> None:
    """Said at once, not at the first send. A client or resource of S3 has no delays."""
    wrongs: list[Any] = [None, "sqs", object(), boto3.client("s3"), boto3.resource("s3")]
    for wrong in wrongs:
        with pytest.raises(errors.ConfigurationError, match="is not an SQS client"):
            unrestricted(wrong)


def test_an_asynchronous_client_is_refused(shop: Shop) -> None:
    """aiobotocore's is a botocore client by class; its first long delay would fail in the middle."""

    class AioClient(BaseClient):
        async def _make_api_call(self, *arguments: Any) -> Any:
            raise NotImplementedError

    client: Any = AioClient.__new__(AioClient)
    client.__dict__.update(shop.client.__dict__)
    with pytest.raises(errors.ConfigurationError, match="is asynchronous"):
        unrestricted(client)
