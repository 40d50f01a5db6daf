"""Faults no local server can be made to show: partial batch failures, answered by botocore's stubber."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
import tenacity
from botocore.stub import Stubber

from sqsdelay import DelaySender
from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.core.message import OutgoingMessage, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.errors import InvalidEndpoint, QueueMissing, QueueUnavailable, SendFailed
from sqsdelay.ports.queues import Failure, SendReceipt
from sqsdelay.sqs.queues import ENTRY_ATTEMPTS, SqsQueues
from sqsdelay.testing import ManualClock

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"


@pytest.fixture
def stubbed() -> Iterator[tuple[SqsQueues, Stubber]]:
    client = boto3.client("sqs")
    with Stubber(client) as stubber:
        yield SqsQueues(client, entry_wait=tenacity.wait_none()), stubber
        stubber.assert_no_pending_responses()


def entries(*bodies: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(body, {}, len(body)) for body in bodies]


def wired(*bodies: str) -> dict[str, Any]:
    return {
        "QueueUrl": URL,
        "Entries": [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies)],
    }


def single(body: str) -> dict[str, Any]:
    return {"QueueUrl": URL, "MessageBody": body}


def sent(*ids: str) -> list[dict[str, Any]]:
    return [{"Id": n, "MessageId": f"s{n}", "MD5OfMessageBody": "md5"} for n in ids]


def failed(entry_id: str, code: str, *, sender_fault: bool) -> dict[str, Any]:
    return {"Id": entry_id, "Code": code, "Message": "told why", "SenderFault": sender_fault}


def test_entries_failed_without_the_senders_fault_are_sent_again(
    stubbed: tuple[SqsQueues, Stubber],
) -> None:
    """Only those, until they are taken; a single one with SendMessage."""
    queues, stubber = stubbed
    lost = [failed(n, "InternalError", sender_fault=False) for n in ("1", "2")]
    stubber.add_response(
        "send_message_batch", {"Successful": sent("0"), "Failed": lost}, wired("a", "b", "c")
    )
    again = wired("a", "b", "c")
    again["Entries"] = again["Entries"][1:]
    stubber.add_response("send_message_batch", {"Successful": sent("2"), "Failed": lost[:1]}, again)
    stubber.add_response("send_message", {"MessageId": "s1"}, single("b"))
    outcomes = queues.send_batch(URL, entries("a", "b", "c"))
    assert [getattr(outcome, "sqs_message_id", None) for outcome in outcomes] == ["s0", "s1", "s2"]


def test_retries_of_entries_end(stubbed: tuple[SqsQueues, Stubber]) -> None:
    """After four sends the entries come back as transient failures with their code."""
    queues, stubber = stubbed
    lost = [failed(n, "InternalError", sender_fault=False) for n in ("0", "1")]
    for _ in range(ENTRY_ATTEMPTS):
        stubber.add_response(
            "send_message_batch", {"Successful": [], "Failed": lost}, wired("a", "b")
        )
    outcomes = queues.send_batch(URL, entries("a", "b"))
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert isinstance(outcome, Failure)
        assert (outcome.code, outcome.transient) == ("InternalError", True)
        assert str(outcome.error) == "SQS failed the entry: InternalError: told why"


@pytest.mark.parametrize(
    ("code", "transient"),
    [
        ("InvalidMessageContents", False),
        ("SomethingNew", False),
        ("AccessDenied", True),
        ("KmsThrottled", True),
        ("AWS.SimpleQueueService.NonExistentQueue", True),
    ],
)
def test_entries_failed_by_the_senders_fault_are_not_sent_again(
    stubbed: tuple[SqsQueues, Stubber], code: str, transient: bool
) -> None:
    """They come back at once; denied access and throttling may pass, the rest will not."""
    queues, stubber = stubbed
    stubber.add_response(
        "send_message_batch",
        {"Successful": sent("0"), "Failed": [failed("1", code, sender_fault=True)]},
        wired("a", "b"),
    )
    good, bad = queues.send_batch(URL, entries("a", "b"))
    assert isinstance(good, SendReceipt)
    assert isinstance(bad, Failure)
    assert bad.transient is transient


def test_a_batch_refused_for_one_entry_is_sent_entry_by_entry(
    stubbed: tuple[SqsQueues, Stubber],
) -> None:
    """One poison entry must not hold up the nine beside it for ever."""
    queues, stubber = stubbed
    stubber.add_client_error("send_message_batch", "InvalidParameterValue", "bad", 400)
    stubber.add_response("send_message", {"MessageId": "s0"}, single("a"))
    stubber.add_client_error("send_message", "InvalidParameterValue", "bad", 400)
    good, bad = queues.send_batch(URL, entries("a", "b"))
    assert isinstance(good, SendReceipt)
    assert isinstance(bad, Failure)
    assert isinstance(bad.error, SendFailed)
    assert not bad.transient


@pytest.mark.parametrize(
    "code", ["ThrottlingException", "AccessDenied", "ExpiredToken", "ServiceUnavailable"]
)
def test_a_call_that_fails_as_a_whole_fails_each_entry_for_now(
    stubbed: tuple[SqsQueues, Stubber], code: str
) -> None:
    """Nothing in the messages is wrong, so nothing of it is permanent."""
    queues, stubber = stubbed
    stubber.add_client_error("send_message_batch", code, "no", 400)
    outcomes = queues.send_batch(URL, entries("a", "b"))
    assert all(isinstance(o, Failure) and o.transient for o in outcomes)
    assert all(isinstance(o.error, QueueUnavailable) for o in outcomes if isinstance(o, Failure))


def test_an_entry_the_answer_forgets_is_not_taken_for_sent(
    stubbed: tuple[SqsQueues, Stubber],
) -> None:
    """Only what is confirmed counts; the rest is sent again."""
    queues, stubber = stubbed
    stubber.add_response(
        "send_message_batch", {"Successful": sent("0"), "Failed": []}, wired("a", "b")
    )
    stubber.add_response("send_message", {"MessageId": "s1"}, single("b"))
    outcomes = queues.send_batch(URL, entries("a", "b"))
    assert all(isinstance(outcome, SendReceipt) for outcome in outcomes)


def test_an_answer_without_content_is_no_answer(stubbed: tuple[SqsQueues, Stubber]) -> None:
    """A 200 that a gateway emptied: the send is repeated, a look-up is an outage; nothing breaks."""
    queues, stubber = stubbed
    stubber.add_response("send_message", {}, single("a"))
    stubber.add_response("send_message", {"MessageId": "s0"}, single("a"))
    (outcome,) = queues.send_batch(URL, entries("a"))
    assert isinstance(outcome, SendReceipt)
    stubber.add_response("get_queue_url", {}, {"QueueName": "orders"})
    with pytest.raises(QueueUnavailable, match="the answer on queue orders has no QueueUrl"):
        queues.url(QueueRef("orders"))
    stubber.add_response("get_queue_attributes", {})
    with pytest.raises(QueueUnavailable, match="has no Attributes"):
        queues.attributes(URL)


def test_deletes_answer_per_entry(stubbed: tuple[SqsQueues, Stubber]) -> None:
    """An expired receipt handle is that copy's failure alone."""
    from tests.unit.test_wire import copy

    queues, stubber = stubbed
    stubber.add_response(
        "delete_message_batch",
        {
            "Successful": [{"Id": "0"}],
            "Failed": [failed("1", "InvalidParameterValue", sender_fault=True)],
        },
    )
    deleted, expired = queues.delete_batch(URL, [copy(), copy()])
    assert deleted is None
    assert isinstance(expired, Failure)


@pytest.mark.parametrize(("url", "has_id"), [(URL, False), (URL + "-delay.fifo", True)])
def test_a_fifo_receive_can_be_repeated(url: str, has_id: bool) -> None:
    """With an attempt id, a retry after a lost answer gets the same copies, not a locked group."""
    client = boto3.client("sqs")
    seen: list[str | None] = []
    client.meta.events.register(
        "provide-client-params.sqs.ReceiveMessage",
        lambda params, **_: seen.append(params.get("ReceiveRequestAttemptId")),
    )
    with Stubber(client) as stubber:
        for _ in range(2):
            stubber.add_response("receive_message", {"Messages": []})
            assert SqsQueues(client).receive_batch(url, wait_seconds=0) == []
    assert [attempt is not None for attempt in seen] == [has_id, has_id]
    assert len(set(seen)) == (2 if has_id else 1)


def test_a_queue_is_looked_up_once_and_again_when_it_has_gone() -> None:
    """URLs are remembered; a queue that does not exist any more is looked up anew."""
    client = boto3.client("sqs")
    queues = SqsQueues(client)
    with Stubber(client) as stubber:
        stubber.add_response("get_queue_url", {"QueueUrl": URL}, {"QueueName": "orders"})
        assert queues.url(QueueRef("orders")) == queues.url(QueueRef("orders")) == URL
        stubber.add_client_error(
            "send_message", "AWS.SimpleQueueService.NonExistentQueue", "gone", 400
        )
        (outcome,) = queues.send_batch(URL, entries("a"))
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, QueueMissing)
        stubber.add_response("get_queue_url", {"QueueUrl": URL}, {"QueueName": "orders"})
        assert queues.url(QueueRef("orders")) == URL
        stubber.assert_no_pending_responses()


def test_a_hook_that_copies_what_is_sent_loses_nothing() -> None:
    """Attributes that cannot be written to are copied all the same: one message by itself, and in a batch."""
    client: Any = boto3.client("sqs")
    kept, sent = {"a": string("b")}, list[Any]()

    def copied(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        sent.append(deepcopy(params))
        return dict(sent[-1])

    client.meta.events.register("provide-client-params.sqs", copied)
    with Stubber(client) as stubber:
        stubber.add_response("send_message", {"MessageId": "1"})
        SqsQueues(client).send_batch(URL, [OutgoingMessage("x", dict(kept), 4)])
        taken = [{"Id": n, "MessageId": n, "MD5OfMessageBody": "x"} for n in "01"]
        stubber.add_response("send_message_batch", {"Successful": taken, "Failed": []})
        SqsQueues(client).send_batch(URL, [OutgoingMessage("x", dict(kept), 4)] * 2)
    assert [s.get("MessageAttributes") for s in (sent[0], *sent[1]["Entries"])] == [kept] * 3


def test_a_server_that_does_not_tell_the_time_is_asked_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stub's answers carry no Date: the local clock stands in, said once, asked once."""
    client = boto3.client("sqs")
    queues = SqsQueues(client)
    with Stubber(client) as stubber:
        stubber.add_response("get_queue_url", {"QueueUrl": URL}, {"QueueName": "orders"})
        for _ in range(3):
            queues.synchronise(QueueRef("orders"))
        stubber.assert_no_pending_responses()
    assert not queues.broker_clock.synchronised
    told = "answers carry no Date header: the local clock stands in for the broker's"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_an_arn_names_the_account_and_must_name_the_clients_region() -> None:
    """The wrong region would be a queue of the same name somewhere else."""
    client = boto3.client("sqs")
    queues = SqsQueues(client)
    with Stubber(client) as stubber:
        wanted = {"QueueName": "orders-delay.fifo", "QueueOwnerAWSAccountId": "123456789012"}
        stubber.add_response("get_queue_url", {"QueueUrl": URL}, wanted)
        queues.url(Endpoint.parse("arn:aws:sqs:us-east-1:123456789012:orders").delay_queue)
        stubber.assert_no_pending_responses()
    with pytest.raises(InvalidEndpoint, match="eu-west-1, and the client calls us-east-1"):
        queues.url(Endpoint.parse("arn:aws:sqs:eu-west-1:123456789012:orders").queue)


@pytest.mark.parametrize(("request_id", "learned"), [("r-1", True), ("", False)])
def test_a_refusal_of_sqs_tells_the_time_too(request_id: str, learned: bool) -> None:
    """A sender may lack GetQueueUrl on the destination; a proxy's refusal proves nothing."""
    client = boto3.client("sqs")
    answered = {"HTTPHeaders": {"date": "Fri, 20 Nov 2026 11:00:00 GMT"}, "RequestId": request_id}
    sender = DelaySender(client, clock=ManualClock())
    with Stubber(client) as stubber:
        stubber.add_client_error("get_queue_url", "AccessDenied", response_meta=answered)
        due = datetime(2026, 11, 20, 11, 5, tzinfo=UTC)
        if learned:
            wanted = {**single("a"), "DelaySeconds": 300}
            stubber.add_response("send_message", {"MessageId": "s1"}, wanted)
            assert sender.send(URL, "a", due_at=due).due == due
        else:
            with pytest.raises(QueueUnavailable, match="AccessDenied"):
                sender.send(URL, "a", due_at=due)
        stubber.assert_no_pending_responses()


def handles(*numbers: int) -> list[dict[str, str]]:
    return [{"Id": str(n), "ReceiptHandle": f"h{n}"} for n in numbers]


def test_a_failed_delete_is_tried_once_more_by_itself(stubbed: tuple[SqsQueues, Stubber]) -> None:
    """Each entry that failed, or was not answered: what stays comes again, and may be a duplicate."""
    queues, stubber = stubbed
    copies = [ReceivedMessage("x", {}, f"h{n}", f"s{n}", 0.0) for n in range(4)]
    answers: list[tuple[list[dict[str, str]], list[str], list[dict[str, Any]]]] = [
        (handles(0, 1, 2, 3), ["0"], [failed("1", "InternalError", sender_fault=False)]),
        (handles(1), ["1"], []),
        (handles(2), [], [failed("2", "InternalError", sender_fault=False)]),
        (handles(3), ["3"], []),
    ]
    for entries, deleted, refused in answers:
        stubber.add_response(
            "delete_message_batch",
            {"Successful": [{"Id": n} for n in deleted], "Failed": refused},
            {"QueueUrl": URL, "Entries": entries},
        )
    first, second, third, fourth = queues.delete_batch(URL, copies)
    assert (first, second, fourth) == (None, None, None)
    assert third is not None
    assert third.code == "InternalError"


def test_a_delete_that_was_not_answered_is_not_tried_again_entry_by_entry(
    stubbed: tuple[SqsQueues, Stubber],
) -> None:
    """botocore has tried the call again already; ten more would each wait for their time limit."""
    queues, stubber = stubbed
    copies = [ReceivedMessage("x", {}, f"h{n}", f"s{n}", 0.0) for n in range(10)]
    stubber.add_client_error("delete_message_batch", "ServiceUnavailable", "later", 503)
    assert [f.code for f in queues.delete_batch(URL, copies) if f] == ["ServiceUnavailable"] * 10
