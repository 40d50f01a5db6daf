"""``sqsdelay endpoint``: create an endpoint's queues, and check them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqsdelay.cli.console import print_json, print_rows, say
from sqsdelay.cli.options import (
    EndpointName,
    Hop,
    Json,
    OptionalStoreUrl,
    parked_messages,
)
from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.readable import Problem
from sqsdelay.errors import QueueMissing, StoreError
from sqsdelay.limits import DEFAULT_HOP_SECONDS
from sqsdelay.operating.status import NOBODY, deployed_store, overdue_remedy

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.sqs.queues import SqsQueues

app = typer.Typer(help="Create or check an endpoint's queues.", no_args_is_help=True)


@app.command()
def create(
    endpoint: Annotated[str, typer.Argument(help="The destination queue's name.")],
    hop: Hop = DEFAULT_HOP_SECONDS,
    as_json: Json = False,
) -> None:
    """Create an endpoint's queues where they do not exist."""
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.endpoints import create_endpoint

    parsed = Endpoint.parse(endpoint)
    created = create_endpoint(default_client(connections=1), parsed, hop_seconds=hop)
    if as_json:
        print_json({"endpoint": parsed.name, "created": created})
        return
    for ref in parsed.queues:
        say(f"{'created' if ref.name in created else 'exists '}  {ref.name}")


@app.command()
def check(
    endpoint: EndpointName,
    hop: Hop = DEFAULT_HOP_SECONDS,
    store: OptionalStoreUrl = None,
    as_json: Json = False,
) -> None:
    """Report what keeps an endpoint from delaying messages, and the fix.

    Exit code 1 if there are any.

    Also checks the store: without --store, the DynamoDB table that a deployment creates for the
    endpoint, if it exists and may be read; and whether the deployed delay consumer still has it.
    """
    from sqsdelay.sqs.client import default_client
    from sqsdelay.sqs.endpoints import check_endpoint

    parsed = Endpoint.parse(endpoint)
    client = default_client(connections=1)
    problems = check_endpoint(client, parsed, hop_seconds=hop)
    problems += _store_problems(client, parsed, store)
    if as_json:
        print_json({"endpoint": parsed.name, "problems": [asdict(problem) for problem in problems]})
    elif not problems:
        say(f"{parsed.name} is ready for unrestricted delays")
    else:
        rows = [(problem.subject, problem.text, problem.remedy) for problem in problems]
        print_rows(("queue", "problem", "fix"), rows)
    if problems:
        raise typer.Exit(1)


def _store_problems(client: SQSClient, endpoint: Endpoint, store: str | None) -> list[Problem]:
    """Messages that are parked and overdue, or that no dispatcher serves: a stack may have lost its own."""
    from sqsdelay.sqs.queues import SqsQueues

    queues = SqsQueues(client)
    with suppress(QueueMissing):
        queues.synchronise(endpoint.queue)
    now_ms = queues.broker_clock.now_ms()
    try:
        seen = parked_messages(endpoint, store, now_ms=now_ms)
    except StoreError as error:
        return [
            Problem("(store)", str(error), "run sqsdelay store create, or check the connection")
        ]
    if seen is None or not seen[1].parked:
        return []
    url, status = seen
    text = f"{status.parked} parked messages"
    if status.overdue:
        since = utc(now_ms - status.late_ms).isoformat(timespec="seconds")
        text += f", the earliest overdue since {since}: {NOBODY}"
    elif url == deployed_store(endpoint) or url.startswith("s3://"):
        used = _consumers_store(queues, endpoint)
        if used is None or used.partition("?")[0] == url.partition("?")[0]:
            return []
        text += ", and the deployed delay consumer has another store or none: unless you run a "
        text += "dispatcher yourself, nobody will release them"
    else:
        return []
    return [Problem("(store)", text, overdue_remedy(endpoint, url))]


def _consumers_store(queues: SqsQueues, endpoint: Endpoint) -> str | None:
    """The URL of the store that the deployed delay consumer has, empty for none; None where it cannot be
    told: no function consumes the delay queue, or nobody may ask."""
    from botocore.exceptions import BotoCoreError, ClientError

    from sqsdelay.sqs.cloudwatch import short_client

    functions = short_client("lambda")
    with suppress(QueueMissing, BotoCoreError, ClientError):
        arn = queues.attributes(queues.url(endpoint.delay_queue))["QueueArn"]
        sources = functions.list_event_source_mappings(EventSourceArn=arn)["EventSourceMappings"]
        for source in sources:
            found = functions.get_function_configuration(FunctionName=source["FunctionArn"])
            variables = found.get("Environment", {}).get("Variables", {})
            return str(variables.get("SQSDELAY_STORE", ""))
    return None
