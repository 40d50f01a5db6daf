"""``sqsdelay prove``: delayed messages through a deployed endpoint, each followed until it arrives."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Option

from sqsdelay.cli.console import counted, figures, out, print_rows, show, tell
from sqsdelay.cli.followed import Run, seconds
from sqsdelay.cli.options import EndpointName, Hop, Json, OptionalPlaceUrl, Target
from sqsdelay.core import limits
from sqsdelay.core.delay import delay_ms
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, Route, attributes_of, size_of
from sqsdelay.core.readable import parse_delay
from sqsdelay.cost import Prices, Workload, bill, dollars, shipped_prices
from sqsdelay.cost.strategies import OF_STORE
from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.operating.status import Role, endpoint_status, naming_the_command

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.sqs.queues import SqsQueues

PATIENCE_SECONDS: Final = 60
"""How long after the last due time a message that has not arrived counts as lost."""
SECOND_COPY_SECONDS: Final = 60
"""How long a run looks for second copies once all have arrived, or a hop if that is shorter."""
MOST_MESSAGES: Final = 10_000


def prove(
    endpoint: EndpointName,
    messages: Annotated[int, Option(min=1, max=MOST_MESSAGES, help="Messages to send.")] = 200,
    longest: Annotated[str, Option(help="The longest delay, as for `send`.")] = "32m",
    hop: Hop = limits.DEFAULT_HOP_SECONDS,
    store: OptionalPlaceUrl = None,
    as_json: Json = False,
) -> None:
    """Send messages through an endpoint and follow them.

    A quarter gets a delay of a hop at most, the rest longer ones. With a store (--store, or the DynamoDB
    table that a deployment creates for the endpoint) half of those wait in it. The endpoint's delay
    consumer and dispatcher must be running. Lateness is told by SQS's own timestamps.

    The endpoint's queues must be empty: use one made for this. Only the run's own messages are deleted.

    Exit code 1 if a message is lost, duplicated, early, altered or more than 2 s late.
    """
    from sqsdelay.sqs.sender import DelaySender

    target = Target(endpoint, store, wait_seconds=limits.MAX_RECEIVE_WAIT_SECONDS)
    parsed, longest_seconds = target.endpoint, delay_ms(parse_delay(longest)) // 1000
    if longest_seconds <= hop:
        raise InvalidSetting(
            f"--longest {longest} is no longer than a hop of {hop} s, and would prove SQS's own delays "
            "only; give a longer one"
        )
    made = _counted(target.client)
    hops = "" if hop == limits.DEFAULT_HOP_SECONDS else f" --hop {hop}"
    _check_empty(target.queues, parsed, hops)
    made.clear()
    run = Run(parsed, target.queues)
    with target.known_place() as place:
        soonest = None if place is None else place.soonest_seconds
        routes = _messages(messages, hop, longest_seconds, parsed.fifo, soonest=soonest)
        # To the store first: it may be another version's, and then nothing is sent at all.
        for route in sorted(routes, key=lambda each: each is not Route.STORE):
            park_after = hop if place is None else max(hop, place.soonest_seconds)
            stores: dict[str, Any] = {"store": place, "park_after_seconds": park_after}
            parked = stores if route is Route.STORE else {}
            sender = DelaySender(target.client, hop_seconds=hop, **parked)
            run.sent(routes[route], sender.send_many(target.name, routes[route]))
        tell(f"{messages} sent to {parsed.name}; the last one is due in {longest}")
        try:
            run.follow(
                lambda _: figures(_HEADERS, _rows(run)),
                patience_seconds=PATIENCE_SECONDS,
                second_copy_seconds=min(hop + 1, SECOND_COPY_SECONDS),
                quiet=as_json or not out.is_terminal,
            )
        except KeyboardInterrupt:
            tell("stopped: what has not arrived yet still will, and nobody deletes it")
            raise
    _tell(run, made, target.store or "", hop, as_json=as_json)
    if not run.summary().good:
        raise typer.Exit(1)


def _counted(client: SQSClient) -> list[tuple[str, bool]]:
    """Calls made with a client: the operation, and whether the queue is FIFO."""
    made: list[tuple[str, bool]] = []

    def count(params: dict[str, Any], model: Any, **_: Any) -> None:
        fifo = str(params.get("QueueUrl", "")).endswith(limits.FIFO_SUFFIX)
        made.append((model.name, fifo))

    client.meta.events.register("before-parameter-build.sqs", count)
    return made


def _check_empty(queues: SqsQueues, endpoint: Endpoint, options: str) -> None:
    for ref in endpoint.queues:
        with naming_the_command(endpoint, ref, options):
            queues.url(ref)
    for queue in endpoint_status(queues, endpoint).queues:
        held = queue.visible + queue.in_flight + queue.delayed
        if held and queue.role is not Role.ERROR:
            raise ConfigurationError(
                f"{queue.name} already holds messages, about {held}; use an endpoint of its own: "
                f"sqsdelay endpoint create proof-{endpoint.name}{options}"
            )


def _messages(
    number: int, hop: int, longest: int, fifo: bool, *, soonest: int | None
) -> dict[Route, list[Message]]:
    """What to send each way: delays spread evenly, bodies and attributes of every kind. ``soonest``: how far
    ahead the store takes messages, None without one."""
    run = f"prove-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"
    ways = {Route.DIRECT: (0, hop), Route.DELAY_QUEUE: (hop + 1, longest)}
    turns = [Route.DIRECT, Route.DELAY_QUEUE, Route.DELAY_QUEUE, Route.DELAY_QUEUE]
    if soonest is not None:
        # Sending takes seconds of what a store like Scheduler needs ahead.
        near = min(2 * limits.SCHEDULE_SECONDS, longest // 2)
        from_store = max(hop, near, soonest and soonest + 60)
        if longest <= from_store:
            told = f"leaves no time to send: the store takes what is due in {soonest} s or later"
            raise InvalidSetting(f"{told}; use {from_store + 1} or more", longest=longest)
        ways[Route.STORE] = from_store + 1, longest
        turns = [Route.DIRECT, Route.STORE, Route.DELAY_QUEUE, Route.STORE]
    routes: dict[Route, list[Message]] = {route: [] for route in ways}
    for place in range(number):
        route = turns[place % len(turns)]
        least, most = ways[route]
        # The last of each way has the longest delay, the first the shortest.
        share = place // len(turns) / max(1, (number - 1) // len(turns))
        routes[route].append(
            Message(
                f"{place}: <naïve> 漢字 😀\n\t" + "x" * (place % 7 * 100),
                delay=least + round(share * (most - least)),
                attributes={
                    "Kind": "proof",
                    "Number": place,
                    "Bytes": bytes(range(place % 50 + 1)),
                },
                message_id=f"{run}-{place}",
                message_group_id=f"{run}-{place % 10}" if fifo else None,
            )
        )
    return routes


_HEADERS: Final = (
    *("route", "sent", "delivered", "lost", "twice", "early", "altered"),
    *("late p50", "p99", "max"),
)


def _rows(run: Run) -> list[tuple[str, ...]]:
    used = sorted({entry.route for _, entry in run.rows()}, key=list(Route).index)
    rows = []
    for name, summary in [*((str(r), run.summary(r)) for r in used), ("all", run.summary())]:
        *counts, p50, p99, worst = asdict(summary).values()
        rows.append((name, *map(str, counts), *map(seconds, (p50, p99, worst))))
    return rows


def _tell(
    run: Run, made: Sequence[tuple[str, bool]], store: str, hop: int, *, as_json: bool
) -> None:
    """The outcome of each route, the requests made here and their price, and what `cost` reckons."""
    prices = shipped_prices()
    each = {True: prices.sqs_fifo_request, False: prices.sqs_standard_request}
    paid = sum((each[fifo] for _, fifo in made), Fraction(0))
    requests, reckoned = Counter(name for name, _ in made), _reckoned(run, store, hop, prices)
    used = {entry.route for _, entry in run.rows()}
    record = {
        "routes": {str(route): asdict(run.summary(route)) for route in Route if route in used},
        "all": asdict(run.summary()),
        "requests": requests,
        "requests_price": float(paid),
        "reckoned": {str(route): float(amount) for route, amount in reckoned.items()},
        "currency": prices.currency,
    }
    if not (as_json or out.is_terminal):  # There, the table shown meanwhile is still to be seen.
        print_rows(_HEADERS, _rows(run))
    show(
        record,
        f"Requests of this command: {counted(requests)}; ${dollars(paid)}.",
        *(
            f"`sqsdelay cost` reckons ${dollars(amount)} for {route}, each message alone."
            for route, amount in reckoned.items()
        ),
        as_json=as_json,
    )


def _reckoned(run: Run, store: str, hop: int, prices: Prices) -> dict[Route, Fraction]:
    """What sending, hopping and waiting cost by the bill; a database of one's own has none."""
    found: dict[Route, Fraction] = {}
    for _, entry in run.rows():
        # A message timer is a relay of no hop.
        way = OF_STORE.get(store.partition(":")[0]) if entry.route is Route.STORE else "relay"
        if way is None:
            continue
        load = Workload(
            delay_seconds=delay_ms(entry.message.delay or 0) // 1000,
            message_bytes=size_of(entry.message.body, attributes_of(entry.message.attributes)),
            hop_seconds=hop,
            park_after_seconds=hop,
            own_ids=True,
        )
        amount = bill(way, load, prices).for_messages
        found[entry.route] = found.get(entry.route, Fraction(0)) + amount
    return found
