"""What a console serves, and to whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS

MIN_TOKEN_CHARS: Final = 24
"""Ours: 24 characters of base64 are 144 bits, out of reach of guessing over a network."""

MIN_TOKEN_KINDS: Final = 8
"""Ours: 24 random hexadecimal digits have fewer different ones once in 4,000 tokens."""

_ONE: Final = re.compile(r"([A-Za-z0-9_.-]{1,80})=(\w+://?.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use the console.

    Args:
        host: the address it listens on.
        allowed_hosts: names it may be called by, besides the loopback ones.
        token: what a user has to know; None where nobody is asked.
        user_header: the header in which a proxy names whom it has authenticated.
        proxies: the addresses such a proxy calls from, or one that ends TLS before a token is asked for.
        read_only: nothing can be changed.

    Raises:
        ConfigurationError: it would be open to a network; a token that can be guessed.
    """

    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    token: str | None = None
    user_header: str | None = None
    proxies: tuple[str, ...] = ()
    read_only: bool = False

    def __post_init__(self) -> None:
        if self.token is not None:
            for what, count, least in (
                ("has {} characters", len(self.token), MIN_TOKEN_CHARS),
                ("is made of {} different characters", len(set(self.token)), MIN_TOKEN_KINDS),
            ):
                if count < least:
                    raise InvalidSetting(
                        f"the console's token {what.format(count)}; use {least} or more, "
                        "e.g. of: openssl rand -base64 32"
                    )
        if (self.user_header is None) != (not self.proxies) and not (self.proxies and self.token):
            raise InvalidSetting(
                "a proxy that authenticates takes both: the header in which it names the user "
                "(--user-header X-Forwarded-User) and the address it calls from (--proxy 10.0.0.5)"
            )
        for proxy in self.proxies:
            try:
                ip_address(proxy)
            except ValueError as error:
                raise InvalidSetting(
                    f"--proxy {proxy!r} is not valid; give the IP address the proxy calls from"
                ) from error
        if not is_loopback(self.host) and self.token is None and self.user_header is None:
            raise InvalidSetting(
                f"on {self.host} the console would be open to the network; set a token "
                "(SQSDELAY_CONSOLE_TOKEN), or put it behind a proxy that authenticates "
                "(--user-header and --proxy), or leave out --host"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """What a console shows.

    Args:
        endpoints: names, URLs or ARNs of the endpoints.
        stores: the URL of each endpoint's store, by the endpoint's name.
        rabbitmq: the broker the endpoints' messages are released to, instead of SQS.
        prefix: of the infrastructure on it.
        ledger: the file that senders, the delay consumer and the dispatcher record in.
        hop_seconds: the delay queues' delivery delay.
        max_delay_seconds: the longest delay that is allowed.

    Raises:
        InvalidEndpoint
        ConfigurationError: two endpoints of one name; no endpoint.
    """

    endpoints: tuple[str, ...]
    stores: Mapping[str, str] = field(default_factory=dict)
    rabbitmq: str | None = None
    prefix: str | None = None
    ledger: Path | None = None
    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidSetting("the console has no endpoint to show; give --endpoint NAME")
        names = [Endpoint.parse(each).name for each in self.endpoints]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise InvalidSetting(
                f"endpoint {min(twice)!r} is named twice; run a console for each account or region"
            )


def stores_of(given: Sequence[str], endpoints: Sequence[str]) -> dict[str, str]:
    """The store of each endpoint: ``URL`` is every endpoint's, ``NAME=URL`` that one's."""
    names = [Endpoint.parse(each).name for each in endpoints]
    matches = [_ONE.fullmatch(each) for each in given]
    shared = [url for url, match in zip(given, matches, strict=True) if not match]
    if len(shared) > 1:
        raise InvalidSetting("more than one store without a name; give --store ENDPOINT=URL")
    found = dict.fromkeys(names, shared[0]) if shared else {}
    for match in filter(None, matches):
        if match[1] not in names:
            raise InvalidSetting(
                f"--store {match[1]}=…: {match[1]!r} is not an endpoint of this console; its "
                f"endpoints are {', '.join(names)}"
            )
        found[match[1]] = match[2]
    return found


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
