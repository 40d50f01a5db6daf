"""``sqsdelay status``, ``endpoint`` and ``store``: how an endpoint does; make, check, leave what it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from sqsdelay.cli import options
from sqsdelay.cli.console import counted, print_json, print_rows, say, show, tell
from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_HOP_SECONDS
from sqsdelay.core.readable import Problem, age, instant
from sqsdelay.errors import QueueMissing, QueueUnavailable, SchemaMismatch, StoreError, StoreMissing
from sqsdelay.operating import status as state
from sqsdelay.operating.migration import Migrated, Migration, MigrationStatus
from sqsdelay.parking.parking import check

if TYPE_CHECKING:
    from sqsdelay.sqs.queues import SqsQueues

_GROUP: Final[dict[str, Any]] = {"cls": options.Commands, "no_args_is_help": True}
endpoint_app = typer.Typer(**_GROUP, help="Create or check an endpoint's queues.")
store_app = typer.Typer(**_GROUP, help="Set up a delayed message store, or leave it.")


def status(
    endpoint: options.EndpointName,
    store: options.OptionalPlaceUrl = None,
    as_json: options.Json = False,
) -> None:
    """Count an endpoint's pending, failed and parked messages.

    Queue counts are SQS's approximations. The age of the oldest message comes from CloudWatch and is
    a few minutes old; "-" means that CloudWatch has none or may not be read. Parked messages and the
    next due time are exact; without --store they come from the DynamoDB table that a deployment
    creates for the endpoint, if it exists and may be read.

    Exit code 1 if the store cannot be read, or messages in it are overdue.
    """
    from sqsdelay.sqs.cloudwatch import CloudWatchAges, short_client

    target = options.Target(endpoint, store)
    ages = CloudWatchAges(short_client("cloudwatch"))
    found = state.endpoint_status(target.queues, target.endpoint, ages)
    parked = trouble = None
    try:
        with target.known_place() as place:
            if place is not None:
                parked = state.store_status(place, now_ms=target.queues.broker_clock.now_ms())
    except StoreError as error:
        trouble = error  # The queues are worth showing all the same.
    due_ms = None if parked is None else parked.next_due_ms
    next_due = None if due_ms is None else instant(due_ms)
    if as_json:
        names = ("endpoint", "pending", "in_flight", "oldest_seconds", "errors", "parking_unread")
        record = {name: getattr(found, name) for name in names}
        record |= {
            "parked": parked and parked.parked,
            "next_due": next_due,
            "overdue_seconds": parked and parked.late_ms // 1000,
            "queues": [asdict(queue) for queue in found.queues],
        }
        print_json(record)
    else:
        summary = (
            ("pending", f"about {found.pending:,}"),
            ("in flight", f"about {found.in_flight:,}"),
            ("oldest", age(found.oldest_seconds)),
            ("errors", f"about {found.errors:,}"),
            ("parked", f"{parked.parked:,}" if parked else "-"),
            ("next due", next_due or "-"),
        )
        print_rows(("", ""), summary, box=None, show_header=False)
        rows = []
        for queue in found.queues:
            counts = [f"{count:,}" for count in (queue.visible, queue.in_flight, queue.delayed)]
            rows.append((queue.name, queue.role, *counts, age(queue.oldest_seconds)))
        print_rows(("queue", "", "visible", "in flight", "delayed", "oldest"), rows)
    if found.parking_unread is not None:
        tell(found.parking_unread)
    if trouble is not None:
        tell(f"store: {trouble}")
        raise typer.Exit(1)
    if parked is not None and parked.overdue:
        late = age(parked.late_ms // 1000)
        remedy = state.overdue_remedy(target.endpoint, target.store or "")
        tell(f"the earliest message in the store is {late} overdue: {state.NOBODY}; {remedy}")
        raise typer.Exit(1)


@endpoint_app.command("create")
def endpoint_create(
    endpoint: Annotated[str, Argument(help="The destination queue's name.")],
    hop: options.Hop = DEFAULT_HOP_SECONDS,
    as_json: options.Json = False,
) -> None:
    """Create an endpoint's queues where they do not exist."""
    from sqsdelay.sqs.endpoints import create_endpoint

    target = options.Target(endpoint)
    created = create_endpoint(target.client, target.endpoint, hop_seconds=hop)
    names = [ref.name for ref in target.endpoint.queues]
    lines = [f"{'created' if name in created else 'exists '}  {name}" for name in names]
    show({"endpoint": target.name, "created": created}, *lines, as_json=as_json)


@endpoint_app.command("check")
def endpoint_check(
    endpoint: options.EndpointName,
    hop: options.Hop = DEFAULT_HOP_SECONDS,
    store: options.OptionalPlaceUrl = None,
    as_json: options.Json = False,
) -> None:
    """Report what keeps an endpoint from delaying messages, and the fix.

    Exit code 1 if there are any.

    Also checks the store: without --store, the DynamoDB table, the bucket or the schedule group that a
    deployment creates for the endpoint, if it exists and may be read; and whether the deployed delay
    consumer still has it. Then the parking queue.
    """
    from sqsdelay.sqs.endpoints import check_endpoint

    target = options.Target(endpoint, store)
    problems = check_endpoint(target.client, target.endpoint, hop_seconds=hop)
    problems += _store_problems(target)
    if as_json:
        print_json({"endpoint": target.name, "problems": [asdict(problem) for problem in problems]})
    elif not problems:
        say(f"{target.name} is ready for unrestricted delays")
    else:
        rows = [(problem.subject, problem.text, problem.remedy) for problem in problems]
        print_rows(("queue", "problem", "fix"), rows)
    if problems:
        raise typer.Exit(1)


_ANOTHER = "the deployed delay consumer has another store or none"


def _store_problems(target: options.Target) -> list[Problem]:
    """Messages that are overdue, or that nobody serves: a stack may have lost its store."""
    endpoint, queues = target.endpoint, target.queues
    with suppress(QueueMissing):
        queues.synchronise(endpoint.queue)
    gathered, tagged, told = _parking_queue(target)
    used = _consumers_store(queues, endpoint)
    known = [state.deployed_store(endpoint), *([tagged] if tagged else [])]
    for url in [target.store] if target.store else known:
        served = used is None or used.partition("?")[0] == url.partition("?")[0]
        given_up = not served and (url in known or url.startswith("s3://"))
        told += _problems_of(target, url, given_up=given_up)
    here = (tagged or used or "-").partition("?")[0]  # untagged: the consumer's own
    if gathered and used is not None and used.partition("?")[0] != here:
        text = f"{gathered} messages, and {_ANOTHER}: nothing deployed empties it"
        remedy = f"import it, and deploy it with its store ({tagged or 'not known'}) again"
        if tagged and tagged.startswith("scheduler://"):
            remedy = state.overdue_remedy(endpoint, tagged)
        told.append(Problem(endpoint.parking_queue.name, text, remedy))
    return told


def _problems_of(target: options.Target, url: str, *, given_up: bool) -> list[Problem]:
    """What is wrong with a store; ``given_up``: the deployed delay consumer does not have it."""
    now_ms = target.queues.broker_clock.now_ms()
    try:
        with options.Target(target.name, url).opened_place() as opened:
            if opened.fires and not given_up:
                check(opened)
                return []  # What is due fires by itself, and counting takes a call for each hundred.
            if opened.fires:
                status = state.StoreStatus(parked=opened.pending_count(), next_due_ms=None)
            else:
                status = state.store_status(opened, now_ms=now_ms)
    except StoreError as error:
        if not target.store and not isinstance(error, SchemaMismatch):
            return []  # Nothing was deployed, or nobody may ask.
        text, remedy = str(error), "check the connection and permissions, and try again"
        if isinstance(error, SchemaMismatch | StoreMissing):
            text, _, remedy = text.rpartition("; ")
        return [Problem("(store)", text, remedy)]
    text = f"{status.parked} parked messages"
    if status.overdue:
        since = utc(now_ms - status.late_ms).isoformat(timespec="seconds")
        text += f", the earliest overdue since {since}: {state.NOBODY}"
    elif status.parked and given_up:
        text += f", and {_ANOTHER}: unless you run a dispatcher yourself, nobody will release them"
    else:
        return []
    return [Problem("(store)", text, state.overdue_remedy(target.endpoint, url))]


def _parking_queue(target: options.Target) -> tuple[int, str | None, list[Problem]]:
    """The messages in a deployed parking queue, retained or not, and its store's URL; None where it does not
    tell, or there is no such queue. And why it could not be read."""
    from botocore.exceptions import BotoCoreError, ClientError

    count, tagged, queue = 0, None, target.endpoint.parking_queue
    try:
        url = target.queues.url(queue)
        found = target.queues.attributes(url)
        count = sum(int(n) for name, n in found.items() if name.startswith("ApproximateNumber"))
        tags = target.client.list_queue_tags(QueueUrl=url).get("Tags", {})
        tagged = tags.get(state.STORE_TAG)
        if role := tags.get(state.ROLE_TAG):
            tagged = f"{tagged}?role={role}"
    except QueueMissing:
        pass  # Most endpoints have none.
    except (QueueUnavailable, BotoCoreError, ClientError) as error:
        remedy = "try again, or allow sqs:GetQueueUrl, GetQueueAttributes and ListQueueTags on it"
        return count, tagged, [Problem(queue.name, f"could not be read: {error}", remedy)]
    return count, tagged, []


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


@store_app.command("create")
def store_create(endpoint: options.EndpointName, store: options.PlaceUrl) -> None:
    """Create what a store needs: a table, a bucket, a file or a schedule group."""
    target = options.Target(endpoint, store)
    with target.opened_place(create=True) as opened:
        opened.set_up()
        if opened.fires:
            from sqsdelay.sqs.endpoints import create_queue, due_queue_attributes

            create_queue(target.client, target.endpoint.parking_queue, due_queue_attributes())
    say(f"the store of {target.name} is ready")


@store_app.command("migrate")
def store_migrate(
    endpoint: options.EndpointName,
    store: Annotated[
        str,
        Option(envvar="SQSDELAY_STORE", help="The store to empty: sqlite:///… or postgresql://…."),
    ],
    due_from: Annotated[
        int | None,
        options.time_option("Due from e.g. 2027-01-31T09:00:00Z on; default: a day from now."),
    ] = None,
    amendments_to: Annotated[
        str | None, Option(help="The delay consumer's store, if another: amendments go there.")
    ] = None,
    live: Annotated[bool, Option("--live", help="Migrate, not only show the plan.")] = False,
    as_json: options.Json = False,
) -> None:
    """Move messages of a SQLite or PostgreSQL store to SQS's delay queues.

    Only shows the plan unless --live is given.
    Messages due earlier than --due-from stay for the timeout manager or dispatcher, which may keep
    running. Repeat until nothing is left, one run at a time. Exit code 1 if any message could not be sent.
    """
    from sqsdelay.sqs.sender import DelaySender

    with ExitStack() as opening:
        urls = [store] if amendments_to is None else [store, amendments_to]
        targets = [options.Target(endpoint, url) for url in urls]
        places = [opening.enter_context(each.opened_place()) for each in targets]
        for place in places:
            check(place)
        kept = None if amendments_to is None else places[1]
        sender = DelaySender(idempotent=True)
        migration = Migration(places[0], sender, due_from_ms=due_from, amendments_to=kept)
        if not live:
            _print_plan(migration.plan(), as_json=as_json)
            return
        counts: Counter[str] = Counter()
        for outcome in migration.run():
            counts[outcome.status] += 1
            _print_outcome(outcome, as_json=as_json)
    tell(counted(counts) or "nothing")
    if counts[MigrationStatus.FAILED]:
        raise typer.Exit(1)


def _print_plan(plan: Mapping[str, Any], *, as_json: bool) -> None:
    count = plan["would_migrate"]
    show(
        plan,
        f"due from {plan['due_from']}: {count} would be migrated",
        *([f"first due {plan['earliest']}, last due {plan['latest']}"] if count else []),
        *(f"  {some} to {name}" for name, some in sorted(plan["destinations"].items())),
        f"due earlier: {plan['left']} would stay",
        "nothing was sent; add --live to migrate",
        as_json=as_json,
    )


def _print_outcome(outcome: Migrated, *, as_json: bool) -> None:
    message, told = outcome.message, {"status": outcome.status, "error": outcome.error}
    if as_json:
        given = {"message_id": message.message_id, "destination": message.destination}
        print_json({**given, "due": instant(message.due_ms), **told})
    elif outcome.status is not MigrationStatus.MIGRATED:
        tell(f"{message.message_id}  {outcome.status}: {outcome.error}")
