"""``sqsdelay rabbitmq``: the delay infrastructure on RabbitMQ, and sending through it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from sqsdelay.cli.console import err, out, print_json
from sqsdelay.delay import parse_delay, parse_due_at
from sqsdelay.errors import InvalidMessage

app = typer.Typer(
    help="Delays of up to 8.5 years through RabbitMQ's own queues.", no_args_is_help=True
)

NSERVICEBUS_PREFIX = "nsb.v2"
CONNECT_SECONDS = 5.0

Url = Annotated[
    str,
    typer.Option(
        envvar="SQSDELAY_RABBITMQ_URL",
        help="amqp://user:password@host:5672/vhost, or amqps://… for TLS.",
    ),
]
Prefix = Annotated[
    str, typer.Option(help="What the infrastructure's names start with; NServiceBus's by default.")
]
Endpoint = Annotated[str, typer.Argument(help="The destination queue's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def declare(url: Url, prefix: Prefix = NSERVICEBUS_PREFIX) -> None:
    """Declare the 28 levels and the delivery exchange, where they do not exist yet."""
    from sqsdelay.rabbitmq import Topology
    from sqsdelay.rabbitmq import declare as declare_infrastructure

    topology = Topology(prefix)
    declare_infrastructure(url, topology)
    _say(f"declared {topology.level_name(27)} … {topology.delivery_exchange}")


@app.command()
def verify(
    url: Url,
    prefix: Prefix = NSERVICEBUS_PREFIX,
    management: Annotated[
        str | None,
        typer.Option(
            envvar="SQSDELAY_RABBITMQ_MANAGEMENT_URL",
            help="http://user:password@host:15672, to see policies, bindings and the version too.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what keeps the infrastructure from delaying safely. Exit code 1 unless only warnings."""
    from sqsdelay.rabbitmq import Topology
    from sqsdelay.rabbitmq import verify as verify_infrastructure

    problems = verify_infrastructure(url, Topology(prefix), management_url=management)
    if as_json:
        print_json({"prefix": prefix, "problems": [asdict(problem) for problem in problems]})
    elif not problems:
        _say(f"{prefix} is as it should be")
    for problem in problems if not as_json else []:
        kind = "problem" if problem.serious else "warning"
        _say(f"{kind}: {problem.subject} {problem.text}")
        _say(f"  mend it: {problem.remedy}")
    if any(problem.serious for problem in problems):
        raise typer.Exit(1)


@app.command()
def bind(
    endpoint: Endpoint,
    url: Url,
    prefix: Prefix = NSERVICEBUS_PREFIX,
    conventional: Annotated[
        bool,
        typer.Option(
            "--conventional",
            help="Also make the exchange that NServiceBus's conventional routing topology sends to.",
        ),
    ] = False,
) -> None:
    """Bind an existing queue as an endpoint, and send on what was due before it was bound."""
    from sqsdelay.rabbitmq import Topology
    from sqsdelay.rabbitmq import bind as bind_endpoint

    sent_on = bind_endpoint(url, endpoint, Topology(prefix), conventional=conventional)
    _say(f"bound {endpoint}; {sent_on} undeliverable messages sent on to it")


@app.command()
def send(
    endpoint: Endpoint,
    body: Annotated[str, typer.Option(help="The message's text.")],
    url: Url,
    delay: Annotated[str | None, typer.Option(help="E.g. 32m5s, 1d12h, 90, PT32M5S.")] = None,
    due_at: Annotated[str | None, typer.Option(help="E.g. 2027-01-31T09:00:00Z.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")] = None,
    message_id: Annotated[str | None, typer.Option(help="Made up when left out.")] = None,
    prefix: Prefix = NSERVICEBUS_PREFIX,
    as_json: Json = False,
) -> None:
    """Send a message, delayed or not, and wait until the broker has confirmed it."""
    from sqsdelay.rabbitmq import DelaySender

    with DelaySender(url, prefix=prefix, connect_seconds=CONNECT_SECONDS) as sender:
        result = sender.send(
            endpoint,
            body,
            delay=None if delay is None else parse_delay(delay),
            due_at=None if due_at is None else parse_due_at(due_at),
            headers=dict(map(_header, header or [])),
            message_id=message_id,
        )
    if as_json:
        print_json({"message_id": result.message_id, "route": result.route, "due": result.due})
    else:
        due = result.due.isoformat(timespec="milliseconds") if result.due else ""
        _say(f"sent {result.message_id} ({result.route}), due {due}")


@app.command()
def teardown(
    url: Url,
    prefix: Prefix = NSERVICEBUS_PREFIX,
    force: Annotated[
        bool, typer.Option("--force", help="Even if messages wait in it: they are lost.")
    ] = False,
) -> None:
    """Delete the infrastructure. Endpoints' own queues stay."""
    from sqsdelay.rabbitmq import Topology
    from sqsdelay.rabbitmq import teardown as teardown_infrastructure

    teardown_infrastructure(url, Topology(prefix), force=force)
    _say(f"deleted {prefix}")


@app.command()
def transfer(
    url: Url,
    to: Annotated[
        str,
        typer.Option(
            envvar="SQSDELAY_RABBITMQ_TARGET_URL", help="The target's URL; may be the same broker."
        ),
    ],
    prefix: Prefix = NSERVICEBUS_PREFIX,
    to_prefix: Annotated[str, typer.Option(help="The target's prefix.")] = NSERVICEBUS_PREFIX,
    as_json: Json = False,
) -> None:
    """Move delayed messages, with the time they have left, to another broker or prefix.

    Exit code 1 if any had to stay. Interrupted, it may be run again.
    """
    from sqsdelay.rabbitmq import Topology, Transfer
    from sqsdelay.rabbitmq import transfer as transfer_messages

    seen = 0

    def on_level(level: int, done: Transfer) -> None:
        nonlocal seen
        if done.moved > seen:
            err.print(f"level {level:02}: {done.moved - seen} moved", highlight=False)
            seen = done.moved

    done = transfer_messages(
        url, to, source=Topology(prefix), target=Topology(to_prefix), on_level=on_level
    )
    if as_json:
        print_json({"moved": done.moved, "left": done.left})
    else:
        table = Table("messages", "what became of them")
        table.add_row(str(done.moved), "moved")
        for reason, count in done.left.most_common():
            table.add_row(str(count), f"left where they were: {reason}")
        out.print(table)
    if done.left:
        raise typer.Exit(1)


def _say(text: str) -> None:
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidMessage(f"header {text!r} is not NAME=VALUE; write e.g. --header tenant=acme")
    return name, value
