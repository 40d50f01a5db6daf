"""``sqsdelay console``: a web page to see what waits, what is late and what failed, and to act."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final

from typer import Option

from sqsdelay.cli.console import show, tell
from sqsdelay.cli.options import DEFAULT_MAX_DELAY, Hop, Json, MaxDelay
from sqsdelay.cli.run import log_to_stderr, stop_on_signals
from sqsdelay.limits import DEFAULT_HOP_SECONDS

PORT: Final = 8710


def serve_console(
    endpoint: Annotated[
        list[str],
        Option(help="An endpoint to show: its queue's name, URL or ARN; may be repeated."),
    ],
    store: Annotated[
        list[str] | None,
        Option(envvar="SQSDELAY_STORE", help="The store, or ENDPOINT=URL; may be repeated."),
    ] = None,
    rabbitmq: Annotated[
        str | None,
        Option(
            envvar="SQSDELAY_CONSOLE_RABBITMQ",
            help="amqp://user:password@host:5672/vhost: the endpoints are queues there, not on SQS.",
        ),
    ] = None,
    prefix: Annotated[str | None, Option(help="Name prefix there; default: sqsdelay.")] = None,
    ledger: Annotated[
        Path | None, Option(dir_okay=False, help="The ledger file; changes made here are added.")
    ] = None,
    hop: Hop = DEFAULT_HOP_SECONDS,
    max_delay: MaxDelay = DEFAULT_MAX_DELAY,
    host: Annotated[
        str, Option(help="Address to listen on; other than loopback only with a token or proxy.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65_535, help="Port to listen on; 0: any free.")] = PORT,
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Another host name of the console, besides localhost; may be repeated."),
    ] = None,
    user_header: Annotated[
        str | None,
        Option(help="Header in which a proxy that authenticates names the user; with --proxy."),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        Option(help="IP address that proxy calls from, or one that ends TLS; may be repeated."),
    ] = None,
    token: Annotated[
        str | None,
        Option(
            envvar="SQSDELAY_CONSOLE_TOKEN",
            help="The token users must enter; other users of this machine see it in the process "
            "list unless it comes from the variable.",
        ),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="Refuse all changes.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a web page to watch endpoints and act on messages.

    It shows what waits, what is late and what failed, and can cancel, move, retry and send.

    Listens on this machine only, until SIGTERM or Ctrl-C. Every change is logged with its user.
    """
    from sqsdelay.console import ConsoleSettings, stores_of
    from sqsdelay.console.guard import Access
    from sqsdelay.console.server import serving
    from sqsdelay.console.services import Services

    access = Access(
        host=host,
        allowed_hosts=tuple(allowed_host or ()),
        token=token,
        user_header=user_header,
        proxies=tuple(proxy or ()),
        read_only=read_only,
    )
    settings = ConsoleSettings(
        endpoints=tuple(endpoint),
        stores=stores_of(store or (), endpoint),
        rabbitmq=rabbitmq,
        prefix=prefix,
        ledger=ledger,
        hop_seconds=hop,
        max_delay_seconds=max_delay,
    )
    log_to_stderr()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    services = Services(settings, access)
    services.check_stores()
    stop = stop_on_signals()
    with serving(services, port=port) as url:
        line = f"the console is at {url}{' (read-only)' if read_only else ''}; stop it with Ctrl-C"
        show({"url": url}, line, as_json=as_json)
        if token is not None:
            tell(
                "it asks for the token; without TLS before it, that crosses the network in the clear"
            )
        stop.wait()
    tell("stopped")
