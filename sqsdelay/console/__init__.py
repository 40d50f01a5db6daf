"""The console: a web page to see what waits, what is late and what failed, and to act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from sqsdelay.core import limits
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import InvalidSetting, MissingExtra

for _needed in ("starlette", "uvicorn", "jinja2", "python_multipart", "itsdangerous"):
    if find_spec(_needed) is None:
        raise MissingExtra(
            f"the console needs {_needed}, which is not installed; run: pip install 'sqsdelay[console]'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """What a console shows. `InvalidSetting` where there is no endpoint, or two have one name."""

    endpoints: tuple[str, ...]  # their names, URLs or ARNs
    stores: Mapping[str, str] = field(default_factory=dict)
    """The URL of each endpoint's store, by the endpoint's name."""
    rabbitmq: str | None = None
    """The broker the endpoints' messages are released to, instead of SQS."""
    prefix: str | None = None  # of the infrastructure on it
    ledger: Path | None = None
    """The file that senders, the delay consumer and the dispatcher record in."""
    hop_seconds: int = limits.DEFAULT_HOP_SECONDS
    max_delay_seconds: int = limits.DEFAULT_MAX_DELAY_SECONDS

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidSetting("the console has no endpoint to show; give --endpoint NAME")
        names = [Endpoint.parse(each).name for each in self.endpoints]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InvalidSetting(
                f"endpoint {min(twice)!r} is named twice; run a console for each account or region"
            )


def stores_of(given: Sequence[str], endpoints: Sequence[str]) -> dict[str, str]:
    """The store of each endpoint: ``URL`` is every endpoint's, ``NAME=URL`` that one's."""
    names = [Endpoint.parse(each).name for each in endpoints]
    shared, found = [], {}
    for each in given:
        name, named, url = each.partition("=")
        if not named or ":" in name:
            shared.append(each)
        elif name in names:
            found[name] = url
        else:
            raise InvalidSetting(
                f"--store {name}=…: {name!r} is not an endpoint of this console; its "
                f"endpoints are {', '.join(names)}"
            )
    if len(shared) > 1:
        raise InvalidSetting("more than one store without a name; give --store ENDPOINT=URL")
    return {name: url for url in shared for name in names} | found
