"""The management API, and what waits in the levels and in the broker's dead-letter hand-over."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from sqsdelay.errors import ConfigurationError, InvalidSetting, QueueUnavailable
from sqsdelay.rabbitmq.connection import Session
from sqsdelay.rabbitmq.topology import Topology

TIMEOUT_SECONDS: Final = 10.0

_HELD: Final = "name,reductions,messages_unacknowledged,messages_dlx"


class Held(NamedTuple):
    """What a quorum queue holds besides the messages that are ready, when it last counted: due, and not yet
    confirmed by the next queue (``messages_dlx``); with consumers. The mark changes with each count."""

    dead_lettering: int
    unacknowledged: int
    mark: int


class Management:
    """Reads the management API of one virtual host. No error repeats the URL, for the password's sake."""

    def __init__(self, url: str, virtual_host: str) -> None:
        try:
            parts = urlsplit(url)
            fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fit = False
        if not fit:
            raise InvalidSetting(
                "the management URL does not start with http:// or https:// and a host; "
                "write e.g. http://user:password@host:15672"
            ) from None
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        encoded = base64.b64encode(login.encode("utf-8", "replace")).decode()
        self._headers = {"Authorization": f"Basic {encoded}"}
        host = parts.netloc.rpartition("@")[2]
        # Where it is, fit to be shown.
        self.place = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/api", "", ""))
        self.virtual_host = virtual_host
        self._virtual_host = quote(virtual_host, safe="")

    def of(self, *path: str) -> Any:
        """What belongs to the virtual host: ``queues``, ``exchanges``, ``bindings``; ``policies``, a name."""
        kind, *name = (quote(part, safe="") for part in path)
        return self.get("/".join(["", kind, self._virtual_host, *name]))

    def named(self, kind: str) -> dict[str, dict[str, Any]]:
        """Queues or exchanges by name."""
        return {each["name"]: each for each in self.of(kind)}

    def held(self) -> dict[str, Held]:
        """What each quorum queue holds, as it counted last; one that has not counted yet is left out."""
        return {
            each["name"]: Held(
                each["messages_dlx"], each.get("messages_unacknowledged", 0), each["reductions"]
            )
            for each in self.get(f"/queues/{self._virtual_host}?columns={_HELD}")
            if "messages_dlx" in each and "reductions" in each
        }

    def get(self, path: str) -> Any:
        """An answer of the API: ``get("/nodes")``."""
        request = urllib.request.Request(self.place + path, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            told = (
                f"the management API at {self.place} answers {error.code} {error.reason} to {path}"
            )
            if error.code >= 500:
                raise QueueUnavailable(f"{told}; try again later") from error
            raise ConfigurationError(
                f"{told}; check user, password and virtual host (the user needs the tag 'monitoring')"
            ) from error
        except (OSError, ValueError, HTTPException) as error:
            raise QueueUnavailable(
                f"the management API at {self.place} cannot be reached: {error}; enable it with: "
                "rabbitmq-plugins enable rabbitmq_management"
            ) from error


FRESH_SECONDS: Final = 60.0
"""How long to wait for counts that are newer than the question. A quorum queue counts every 5 s, the
management plugin collects every 5 s. Source: rabbitmq.com/docs/management, "Statistics Interval";
rabbit_quorum_queue.erl, TICK_INTERVAL."""

_POLL_SECONDS: Final = 0.5

NEWER: Final = 2
"""Changes of a queue's figures after which they are surely newer than the first look: the first change
may have been under way."""

STANDING: Final = 2 * NEWER
"""Changes that show whether a hand-over stands. One that goes on falls with one of them."""

UNCOUNTED: Final = (
    "what the broker is handing over (messages_dlx) shows in its management API only; give "
    "--management http://user:password@host:15672 (management_url=; the plugin is enabled with: "
    "rabbitmq-plugins enable rabbitmq_management)"
)
"""Why AMQP alone cannot tell that an infrastructure is empty, and what can."""


def ready(session: Session, topology: Topology) -> dict[str, int]:
    """Messages that wait in each queue of the infrastructure, now; missing queues are left out. From the
    highest level down, as messages go: none slips past the count."""
    names = (queue.name for queue in reversed(list(topology.queues())))
    counts = {name: session.count(name) for name in names}
    return {name: count for name, count in counts.items() if count is not None}


def hand_overs(held: Iterable[str], topology: Topology) -> dict[str, str]:
    """The hand-over queues among these, each with its endpoint."""
    start = f"{topology.hand_over}."
    return {name: name.removeprefix(start) for name in held if name.startswith(start)}


def held(
    management: Management, names: Collection[str], changes: int = NEWER
) -> dict[str, list[Held]]:
    """What each queue of ``names`` holds: the broker's counts, one after the other, after so many of which
    the last is newer than this call. Takes 5 to 10 s."""
    patience = FRESH_SECONDS * changes / NEWER
    deadline = time.monotonic() + patience
    counts: dict[str, dict[int, Held]] = {name: {} for name in names}
    while stale := next((name for name in names if len(counts[name]) <= changes), ""):
        if time.monotonic() > deadline and counts[stale]:
            raise QueueUnavailable(
                f"the counts of {stale} in the management API at {management.place} did not change for "
                f"{patience:g} s, so they may be old; try again later, or skip this check with --force"
            )
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"the management API at {management.place} does not count the messages of {stale}; give "
                "the URL of the same broker, with its statistics enabled (management.disable_stats = "
                "false), or skip this check with --force"
            )
        counted = management.held()
        for name in counts.keys() & counted.keys():
            counts[name][counted[name].mark] = counted[name]
        time.sleep(_POLL_SECONDS)
    return {name: list(each.values()) for name, each in counts.items()}
