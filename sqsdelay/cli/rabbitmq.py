"""``sqsdelay rabbitmq``: the delay infrastructure on RabbitMQ, and sending through it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqsdelay.cli.console import print_json, say, tell
from sqsdelay.cli.options import Json
from sqsdelay.core.delay import parse_delay, parse_due_at
from sqsdelay.errors import InvalidMessage

if TYPE_CHECKING:
    from sqsdelay.rabbitmq import Topology, Transfer

app = typer.Typer(help="Delays of up to 8.5 years through RabbitMQ queues.", no_args_is_help=True)

CONNECT_SECONDS = 5.0

Url = Annotated[
    str,
    typer.Option(
        envvar="SQSDELAY_RABBITMQ_URL",
        help="amqp://user:password@host:5672/vhost, or amqps://… for TLS.",
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        help="Name prefix of the infrastructure; default: sqsdelay (NServiceBus: nsb.v2)."
    ),
]
Management = Annotated[
    str | None,
    typer.Option(
        envvar="SQSDELAY_RABBITMQ_MANAGEMENT_URL",
        help="http://user:password@host:15672, to see what AMQP does not show: messages in transit, and "
        "(verify) policies, bindings, feature flags, members and the version.",
    ),
]
WithoutAlternateExchange = Annotated[
    bool,
    typer.Option(
        "--without-alternate-exchange",
        help="Use nsb.v2 without the policy that catches undeliverable messages; such messages then "
        "block all others.",
    ),
]
Endpoint = Annotated[str, typer.Argument(help="The destination queue's name.")]


@app.command()
def declare(url: Url, prefix: Prefix = None) -> None:
    """Declare the 28 delay levels and the delivery exchange.

    What exists stays as it is.
    """
    from sqsdelay.rabbitmq import declare as declare_infrastructure
    from sqsdelay.rabbitmq.topology import MAX_LEVEL
    from sqsdelay.rabbitmq.verification import uncaught

    topology = _topology(prefix)
    declare_infrastructure(url, topology)
    say(f"declared {topology.level_name(MAX_LEVEL)} … {topology.delivery_exchange}")
    for problem in uncaught(url, topology) if topology.shared else []:
        tell(f"warning: {problem.subject} {problem.text}\n  fix: {problem.remedy}")


@app.command()
def verify(
    url: Url,
    prefix: Prefix = None,
    management: Management = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Only warn if the management API is missing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Report problems that keep the infrastructure from delaying safely. Warnings alone give exit code 0."""
    from sqsdelay.rabbitmq import verify as verify_infrastructure

    topology = _topology(prefix)
    problems = verify_infrastructure(url, topology, management_url=management, force=force)
    if as_json:
        print_json({"prefix": topology.prefix, "problems": [asdict(each) for each in problems]})
    elif not problems:
        say(f"{topology.prefix}: no problems found")
    else:
        for each in problems:
            say(f"{'problem' if each.fatal else 'warning'}: {each.subject} {each.text}")
            say(f"  fix: {each.remedy}")
    if any(problem.fatal for problem in problems):
        raise typer.Exit(1)


@app.command()
def bind(
    endpoint: Endpoint,
    url: Url,
    prefix: Prefix = None,
    conventional: Annotated[
        bool,
        typer.Option(
            "--conventional",
            help="Also declare the exchange used by NServiceBus's conventional routing topology.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Bind an existing queue as an endpoint.

    Messages that came due before are forwarded to it.
    """
    from sqsdelay.rabbitmq import bind as bind_endpoint

    sent_on = bind_endpoint(url, endpoint, _topology(prefix), conventional=conventional)
    if as_json:
        print_json({"endpoint": endpoint, "forwarded": sent_on})
        return
    say(f"bound {endpoint}; {sent_on} undeliverable messages forwarded to it")


@app.command()
def send(
    endpoint: Endpoint,
    body: Annotated[str, typer.Option(help="The message body.")],
    url: Url,
    delay: Annotated[str | None, typer.Option(help="E.g. 32m5s, 1d12h, 90, PT32M5S.")] = None,
    due_at: Annotated[str | None, typer.Option(help="E.g. 2027-01-31T09:00:00Z.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; may be repeated.")] = None,
    message_id: Annotated[
        str | None, typer.Option(help="Message id; default: a random one.")
    ] = None,
    prefix: Prefix = None,
    without_alternate_exchange: WithoutAlternateExchange = False,
    as_json: Json = False,
) -> None:
    """Send a message with any delay, and wait until it is confirmed."""
    from sqsdelay.rabbitmq import RabbitMqSender

    with RabbitMqSender(
        url,
        prefix=_topology(prefix).prefix,
        without_alternate_exchange=without_alternate_exchange,
        connect_seconds=CONNECT_SECONDS,
    ) as sender:
        result = sender.send(
            endpoint,
            body,
            delay=None if delay is None else parse_delay(delay),
            due_at=None if due_at is None else parse_due_at(due_at),
            headers=dict(map(_header, header or [])),
            message_id=message_id,
        )
    due = result.due.isoformat(timespec="milliseconds") if result.due else ""
    if as_json:
        print_json({"message_id": result.message_id, "route": result.route, "due": due})
    else:
        say(f"sent {result.message_id} ({result.route}), due {due}")


@app.command()
def teardown(
    url: Url,
    prefix: Prefix = None,
    management: Management = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do not count messages first: any that are waiting are lost."),
    ] = False,
) -> None:
    """Delete the infrastructure, but no endpoint's queue. Refuses if messages wait in it."""
    from sqsdelay.rabbitmq import teardown as teardown_infrastructure

    topology = _topology(prefix)
    teardown_infrastructure(url, topology, force=force, management_url=management)
    say(f"deleted {topology.prefix}")


@app.command()
def transfer(
    url: Url,
    to: Annotated[
        str,
        typer.Option(
            envvar="SQSDELAY_RABBITMQ_TARGET_URL", help="URL of the target; may be the same broker."
        ),
    ],
    prefix: Prefix = None,
    to_prefix: Prefix = None,
    without_alternate_exchange: WithoutAlternateExchange = False,
    management: Management = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Do not count messages in transit in the source broker."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Move delayed messages to another broker or prefix.

    They keep their remaining delay.

    Exit code 1 if any had to stay. If interrupted, run it again.
    """
    from sqsdelay.rabbitmq import transfer as transfer_messages

    seen = 0

    def on_level(level: int, done: Transfer) -> None:
        nonlocal seen
        if done.moved > seen:
            tell(f"level {level:02}: {done.moved - seen} moved")
            seen = done.moved

    done = transfer_messages(
        url,
        to,
        source=_topology(prefix),
        target=_topology(to_prefix),
        management_url=management,
        force=force,
        without_alternate_exchange=without_alternate_exchange,
        on_level=on_level,
    )
    if as_json:
        print_json({"moved": done.moved, "left": done.left})
    else:
        say(f"{done.moved} messages moved")
        for reason, count in done.left.most_common():
            say(f"{count} left in place: {reason}")
    if done.left:
        raise typer.Exit(1)


def _topology(prefix: str | None) -> Topology:
    from sqsdelay.rabbitmq.topology import Topology

    return Topology() if prefix is None else Topology(prefix)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidMessage(f"header {text!r} is not NAME=VALUE; use e.g. --header tenant=acme")
    return name, value
