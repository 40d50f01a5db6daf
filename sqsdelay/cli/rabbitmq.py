"""``sqsdelay rabbitmq``: the delay infrastructure on RabbitMQ, and sending through it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from sqsdelay.cli.console import say, show, tell
from sqsdelay.cli.options import Commands, Json, times
from sqsdelay.core.limits import CONNECT_SECONDS
from sqsdelay.errors import ConfigurationError, InvalidMessage

if TYPE_CHECKING:
    from sqsdelay.rabbitmq import Topology, Transfer

app = typer.Typer(cls=Commands, no_args_is_help=True)
_URLS: Final = "amqp://user:password@host:5672/vhost, or amqps://… for TLS."
_PREFIX_HELP: Final = "Name prefix of the infrastructure; default: sqsdelay (NServiceBus: nsb.v2)."


def _topology(prefix: str | None) -> Topology:
    from sqsdelay.rabbitmq.topology import OWN_PREFIX, Topology

    return Topology(OWN_PREFIX if prefix is None else prefix)


def _broker(context: typer.Context) -> tuple[str, Topology, str | None]:
    """The broker's URL, the infrastructure on it, and the management API's URL; asked for once they are
    needed, which --help does not."""
    url, prefix, management = context.obj
    if url is None:
        raise typer.BadParameter("give sqsdelay rabbitmq --url, or set SQSDELAY_RABBITMQ_URL")
    return url, _topology(prefix), management


@app.callback()
def of_broker(
    context: typer.Context,
    url: Annotated[str | None, Option(envvar="SQSDELAY_RABBITMQ_URL", help=_URLS)] = None,
    prefix: Annotated[str | None, Option(help=_PREFIX_HELP)] = None,
    management: Annotated[
        str | None,
        Option(
            envvar="SQSDELAY_RABBITMQ_MANAGEMENT_URL",
            help="http://user:password@host:15672, to see what AMQP does not show: messages in transit, "
            "and (verify) policies, bindings, feature flags, members and the version.",
        ),
    ] = None,
) -> None:
    """Delays of up to 8.5 years through RabbitMQ queues.

    The options stand before the command: sqsdelay rabbitmq --prefix acme declare.
    """
    context.obj = url, prefix, management


WithoutAlternateExchange = Annotated[
    bool,
    Option(
        "--without-alternate-exchange",
        help="Use nsb.v2 without its policy: undeliverable messages then block all others.",
    ),
]
Endpoint = Annotated[str, Argument(help="The destination queue's name.")]


@app.command()
def declare(context: typer.Context) -> None:
    """Declare the 28 delay levels and the delivery exchange.

    What exists stays as it is.
    """
    from sqsdelay.rabbitmq import declare as declare_infrastructure
    from sqsdelay.rabbitmq.connection import parameters
    from sqsdelay.rabbitmq.publisher import Publisher
    from sqsdelay.rabbitmq.topology import MAX_LEVEL

    url, topology, _ = _broker(context)
    declare_infrastructure(url, topology)
    say(f"declared {topology.level_name(MAX_LEVEL)} … {topology.delivery_exchange}")
    if topology.shared:
        with closing(Publisher(parameters(url))) as publisher:
            if uncaught := publisher.uncaught(topology):
                if not isinstance(uncaught, ConfigurationError):
                    raise uncaught  # it could not be found out
                tell(f"warning: {uncaught}")


@app.command()
def verify(
    context: typer.Context,
    force: Annotated[bool, Option("--force", help="Only warn without the management API.")] = False,
    as_json: Json = False,
) -> None:
    """Report problems that keep the infrastructure from delaying safely. Warnings alone give exit code 0."""
    from sqsdelay.rabbitmq import verify as verify_infrastructure

    url, topology, management = _broker(context)
    problems = verify_infrastructure(url, topology, management_url=management, force=force)
    lines = []
    for each in problems:
        kind = "problem" if each.fatal else "warning"
        lines += [f"{kind}: {each.subject} {each.text}", f"  fix: {each.remedy}"]
    record = {"prefix": topology.prefix, "problems": [asdict(each) for each in problems]}
    show(record, *(lines or [f"{topology.prefix}: no problems found"]), as_json=as_json)
    if any(problem.fatal for problem in problems):
        raise typer.Exit(1)


@app.command()
def bind(
    context: typer.Context,
    endpoint: Endpoint,
    conventional: Annotated[
        bool, Option("--conventional", help="Also declare NServiceBus's conventional exchange.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bind an existing queue as an endpoint.

    Messages that came due before are forwarded to it.
    """
    from sqsdelay.rabbitmq import bind as bind_endpoint

    url, topology, _ = _broker(context)
    sent_on = bind_endpoint(url, endpoint, topology, conventional=conventional)
    line = f"bound {endpoint}; {sent_on} undeliverable messages forwarded to it"
    show({"endpoint": endpoint, "forwarded": sent_on}, line, as_json=as_json)


@app.command()
def send(
    context: typer.Context,
    endpoint: Endpoint,
    body: Annotated[str, Option(help="The message body.")],
    delay: Annotated[str | None, Option(help="E.g. 32m5s, 1d12h, 90, PT32M5S.")] = None,
    due_at: Annotated[str | None, Option(help="E.g. 2027-01-31T09:00:00Z.")] = None,
    header: Annotated[list[str] | None, Option(help="NAME=VALUE; may be repeated.")] = None,
    message_id: Annotated[str | None, Option(help="Message id; default: a random one.")] = None,
    without_alternate_exchange: WithoutAlternateExchange = False,
    as_json: Json = False,
) -> None:
    """Send a message with any delay, and wait until it is confirmed."""
    from sqsdelay.rabbitmq import RabbitMqSender

    url, topology, _ = _broker(context)
    with RabbitMqSender(
        url,
        prefix=topology.prefix,
        without_alternate_exchange=without_alternate_exchange,
        connect_seconds=CONNECT_SECONDS,
    ) as sender:
        result = sender.send(
            endpoint,
            body,
            **times(delay, due_at),
            headers=dict(map(_header, header or [])),
            message_id=message_id,
        )
    due = result.due.isoformat(timespec="milliseconds") if result.due else ""
    line = f"sent {result.message_id} ({result.route}), due {due}"
    record = {"message_id": result.message_id, "route": result.route, "due": due}
    show(record, line, as_json=as_json)


@app.command()
def teardown(
    context: typer.Context,
    force: Annotated[
        bool, Option("--force", help="Do not count messages first: any that are waiting are lost.")
    ] = False,
) -> None:
    """Delete the infrastructure, but no endpoint's queue. Refuses if messages wait in it."""
    from sqsdelay.rabbitmq import teardown as teardown_infrastructure

    url, topology, management = _broker(context)
    teardown_infrastructure(url, topology, force=force, management_url=management)
    say(f"deleted {topology.prefix}")


@app.command()
def transfer(
    context: typer.Context,
    to: Annotated[
        str,
        Option(envvar="SQSDELAY_RABBITMQ_TARGET_URL", help="URL of the target, maybe the same."),
    ],
    to_prefix: Annotated[str | None, Option(help=_PREFIX_HELP)] = None,
    without_alternate_exchange: WithoutAlternateExchange = False,
    force: Annotated[bool, Option("--force", help="Do not count messages in transit.")] = False,
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

    url, topology, management = _broker(context)
    done = transfer_messages(
        url,
        to,
        source=topology,
        target=_topology(to_prefix),
        management_url=management,
        force=force,
        without_alternate_exchange=without_alternate_exchange,
        on_level=on_level,
    )
    left = [f"{count} left in place: {reason}" for reason, count in done.left.most_common()]
    record = {"moved": done.moved, "left": done.left}
    show(record, f"{done.moved} messages moved", *left, as_json=as_json)
    if done.left:
        raise typer.Exit(1)


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidMessage(f"header {text!r} is not NAME=VALUE; use e.g. --header tenant=acme")
    return name, value
