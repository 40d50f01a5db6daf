"""What deploy tests share: receiving what arrives, and reading the function's metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Container
from typing import Any

from sqsdelay.testing.local_aws import LocalAws
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import in_queue
from tests.services.processes import run


def receive(
    aws: LocalAws, queue_url: str, *, count: int, within: float = PATIENCE_SECONDS
) -> list[dict[str, Any]]:
    """Receive and delete until ``count`` messages came; fails after ``within`` seconds."""
    sqs = aws.client("sqs")
    deadline = time.monotonic() + within
    received: list[dict[str, Any]] = []
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} messages in {within} s"
        for message in in_queue(sqs, queue_url, wait=1):
            received.append({**message, "ArrivedAt": time.time()})
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
    return received


def scheduled(aws: LocalAws, function_name: str, *, enabled: bool) -> None:
    """Whether the function's schedule runs it: else nobody but the test does, and counts what it did."""
    events = aws.client("events")
    function = aws.client("lambda").get_function_configuration(FunctionName=function_name)
    for name in events.list_rule_names_by_target(TargetArn=function["FunctionArn"])["RuleNames"]:
        (events.enable_rule if enabled else events.disable_rule)(Name=name)


def dispatch(
    aws: LocalAws, outputs: dict[str, str], event: dict[str, bool] | None = None
) -> dict[str, int]:
    """Run the stack's dispatcher now, with a schedule's event; returns what it counted."""
    answer = aws.client("lambda").invoke(
        FunctionName=outputs["DispatcherName"], Payload=json.dumps(event or {})
    )
    payload = answer["Payload"].read()
    assert "FunctionError" not in answer, payload
    counts: dict[str, int] = json.loads(payload)
    return counts


def log_lines(aws: LocalAws, function_name: str) -> list[str]:
    """What the function has logged."""
    configuration = aws.client("lambda").get_function_configuration(FunctionName=function_name)
    pages = aws.client("logs").get_paginator("filter_log_events")
    return [
        event["message"]
        for page in pages.paginate(logGroupName=configuration["LoggingConfig"]["LogGroup"])
        for event in page["events"]
    ]


def metric(aws: LocalAws, function_name: str, name: str) -> float:
    """The sum of one of the function's metrics, from the log lines CloudWatch would take it from."""
    lines = [line for line in log_lines(aws, function_name) if '"_aws"' in line]
    return sum((sum(json.loads(line).get(name, [])) for line in lines), 0.0)


def queues(aws: LocalAws, prefix: str) -> list[str]:
    """URLs of the queues whose names start so."""
    urls: list[str] = aws.client("sqs").list_queues(QueueNamePrefix=prefix).get("QueueUrls", [])
    return urls


def sqsdelay(aws: LocalAws, *arguments: str, codes: Container[int] = (0,)) -> str:
    """What the command line prints; it exits with one of ``codes``."""
    done = run(*arguments, env=aws.environment())
    assert done.returncode in codes, done.stderr
    return done.stdout


def given_up(aws: LocalAws, endpoint: str) -> list[tuple[str, str, str]]:
    """What `sqsdelay endpoint check` finds of an endpoint whose store was given up: nobody names it."""
    told = sqsdelay(aws, "endpoint", "check", endpoint, "--hop", "1", "--json", codes=(1,))
    problems = json.loads(told)["problems"]
    assert all(
        "the deployed delay consumer has another store or none" in p["text"] for p in problems
    )
    return [(p["subject"], " ".join(p["text"].split()[:2]), p["remedy"]) for p in problems]


def proven(aws: LocalAws, endpoint: str, messages: int) -> dict[str, Any]:
    """What `sqsdelay prove` finds at a deployed endpoint whose hop is a second: nothing to complain of."""
    options = ("--messages", str(messages), "--longest", "8s", "--hop", "1", "--json")
    # 1 also says that one was more than 2 s late, as it may be on a busy machine.
    found: dict[str, Any] = json.loads(sqsdelay(aws, "prove", endpoint, *options, codes=(0, 1)))
    counts = {name: found["all"][name] for name in ("sent", "delivered", "duplicated", "altered")}
    assert counts == {"sent": messages, "delivered": messages, "duplicated": 0, "altered": 0}
    assert (
        found["all"]["worst_late_ms"] >= found["all"]["p50_late_ms"] >= found["all"]["early"] == 0
    )
    assert found["requests"]["SendMessageBatch"] >= messages // 20
    return found
