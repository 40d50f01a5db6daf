"""The proxy does what its faults are called: SQS acted or did not, and the client is told or is not."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ReadTimeoutError

from sqsdelay.testing import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.sqs_proxy import Exchange, Fault, FaultPlan, SqsProxy

ACTED_UNTOLD = (Fault.RESET_AFTER, Fault.TRUNCATED)
NOT_ACTED = {
    Fault.RESET_BEFORE: "ConnectionClosedError",
    Fault.UNAVAILABLE: "ServiceUnavailable",
    Fault.THROTTLED: "ThrottlingException RequestThrottled",
}


@pytest.fixture
def queue(local_aws: LocalAws) -> Any:
    """An empty queue, as a boto3 resource has it."""
    import boto3

    sqs: Any = boto3.resource("sqs", endpoint_url=local_aws.endpoint_url)
    made = sqs.create_queue(QueueName="proxied")
    yield made
    made.delete()


def client_of(local_aws: LocalAws, proxy: SqsProxy, **settings: Any) -> Any:
    once = Config(retries={"mode": "standard", "total_max_attempts": 1}, **settings)
    return local_aws.client("sqs", endpoint_url=proxy.endpoint_url, config=once)


def code_of(error: Exception) -> str:
    if isinstance(error, ClientError):
        return str(error.response["Error"]["Code"])
    return type(error).__name__


def waiting(queue: Any) -> list[str]:
    return [message.body for message in queue.receive_messages(MaxNumberOfMessages=10)]


@pytest.mark.parametrize("fault", [*ACTED_UNTOLD, *NOT_ACTED])
def test_a_call_that_fails(local_aws: LocalAws, queue: Any, fault: Fault) -> None:
    """Before SQS acted nothing is in the queue, afterwards the message is."""
    exchanges: list[Exchange] = []
    plan = FaultPlan(seed="x", chances={fault: 1})
    with SqsProxy(local_aws.port, plan, on_exchange=exchanges.append) as proxy:
        with pytest.raises((ClientError, BotoCoreError)) as raised:
            client_of(local_aws, proxy).send_message(QueueUrl=queue.url, MessageBody="x")
        assert code_of(raised.value) in NOT_ACTED.get(fault, "ConnectionClosedError")
    (exchange,) = exchanges
    acted = fault in ACTED_UNTOLD
    assert (exchange.answer is not None, exchange.told) == (acted, not acted)
    assert waiting(queue) == ["x"] * acted


def test_a_500_may_be_told_before_or_after(local_aws: LocalAws, queue: Any) -> None:
    """Of several, SQS acted on some."""
    exchanges: list[Exchange] = []
    plan = FaultPlan(seed="x", chances={Fault.INTERNAL_ERROR: 1})
    with SqsProxy(local_aws.port, plan, on_exchange=exchanges.append) as proxy:
        client = client_of(local_aws, proxy)
        for number in range(8):
            with pytest.raises(ClientError, match="InternalFailure"):
                client.send_message(QueueUrl=queue.url, MessageBody=f"{number}")
    acted = [e.request["MessageBody"] for e in exchanges if e.answer is not None]
    assert 0 < len(acted) < 8
    assert sorted(waiting(queue)) == acted


def test_a_client_that_has_given_up_is_not_told(local_aws: LocalAws, queue: Any) -> None:
    """Nothing was broken, and yet its answer is lost: it came after the client's time limit."""
    exchanges: SimpleQueue[Exchange] = SimpleQueue()
    over = threading.Event()
    with SqsProxy(
        local_aws.port,
        FaultPlan(seed="x"),
        on_exchange=exchanges.put,
        interrupt=lambda _: (over.wait(PATIENCE_SECONDS), None)[1],
    ) as proxy:
        with pytest.raises(ReadTimeoutError):
            client_of(local_aws, proxy, read_timeout=0.1).send_message(
                QueueUrl=queue.url, MessageBody="x"
            )
        over.set()
        exchange = exchanges.get(timeout=PATIENCE_SECONDS)
    assert exchange.answer is not None
    assert (exchange.told, exchange.fault) == (False, None)


@pytest.mark.parametrize(("fault", "sender"), [(Fault.PARTIAL, False), (Fault.REFUSED, True)])
def test_entries_that_fail(local_aws: LocalAws, queue: Any, fault: Fault, sender: bool) -> None:
    """They are told with their SenderFault, and SQS never sees them."""
    plan = FaultPlan(seed="x", chances={fault: 1})
    entries = [{"Id": f"{n}", "MessageBody": f"{n}"} for n in range(10)]
    with SqsProxy(local_aws.port, plan) as proxy:
        client = client_of(local_aws, proxy)
        answer = client.send_message_batch(QueueUrl=queue.url, Entries=entries)
    sent = [entry["Id"] for entry in answer["Successful"]]
    failed = [entry["Id"] for entry in answer["Failed"]]
    assert sorted(sent + failed) == [f"{n}" for n in range(10)]
    assert sent
    assert {entry["SenderFault"] for entry in answer["Failed"]} == {sender}
    assert sorted(waiting(queue)) == sorted(sent)


def test_denied_actions(local_aws: LocalAws, queue: Any) -> None:
    """Single and batched, on that queue alone, while the caller says so."""
    denied = {("SendMessage", "proxied")}
    with SqsProxy(local_aws.port, FaultPlan(seed="x"), denied=denied) as proxy:
        client = client_of(local_aws, proxy)
        with pytest.raises(ClientError, match="AccessDenied"):
            client.send_message(QueueUrl=queue.url, MessageBody="x")
        with pytest.raises(ClientError, match="AccessDenied"):
            client.send_message_batch(QueueUrl=queue.url, Entries=[{"Id": "0", "MessageBody": "x"}])
        denied.clear()
        client.send_message(QueueUrl=queue.url, MessageBody="allowed")
    assert waiting(queue) == ["allowed"]


CHANCES = {Fault.LATENCY: 0.1, Fault.TRUNCATED: 0.2}


def drawn(seed: str) -> list[tuple[Fault | None, float]]:
    plan = FaultPlan(seed=seed, chances=CHANCES)
    return [(fault, random.random()) for fault, random in map(plan.draw, range(2000))]


def test_the_same_seed_is_the_same_plan() -> None:
    """Request by request, details included; another seed is another plan."""
    assert drawn("a") == drawn("a")
    assert drawn("a") != drawn("b")


def test_faults_come_as_often_as_their_chance() -> None:
    """And no others."""
    faults = [fault for fault, _ in drawn("a")]
    assert set(faults) == {None, *CHANCES}
    for fault, chance in CHANCES.items():
        assert abs(faults.count(fault) / len(faults) - chance) < 0.03
