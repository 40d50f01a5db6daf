"""The management API, and what waits in the levels and in the broker's dead-letter hand-over."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, unquote

from sqsdelay.errors import ConfigurationError, InvalidSetting, QueueUnavailable
from sqsdelay.rabbitmq.connection import Session
from sqsdelay.rabbitmq.topology import Topology

# Nothing behind the host may hold an "@": it would be of a password with a "/" in it.
_URL: Final = re.compile(
    r"(?i)(https?://)(?:([^/?#]*)@)?((?:[^/?#@:[]+|\[[^/?#@]+\])(?::[1-9]\d{0,4})?)(/[^?#@]*)?"
)


class Management:
    """Reads the management API of one virtual host. No error repeats the URL, for the password's sake."""

    def __init__(self, url: str, virtual_host: str) -> None:
        found = _URL.fullmatch(url.strip())
        if found is None:
            raise InvalidSetting(
                "the management URL does not start with http:// or https:// and a host; write e.g. "
                "http://user:password@host:15672, with special characters percent-encoded"
            )
        scheme, login, host, path = found.groups("")
        user, _, password = login.partition(":")
        known = f"{unquote(user or 'guest')}:{unquote(password or 'guest')}"
        encoded = base64.b64encode(known.encode("utf-8", "replace")).decode()
        self._headers = {"Authorization": f"Basic {encoded}"}
        # Where it is, fit to be shown.
        self.place = f"{scheme}{host}{path.rstrip('/')}/api"
        self.virtual_host = virtual_host

    def of(self, kind: str, *name: str, query: str = "") -> Any:
        """What belongs to the virtual host: ``queues``, ``exchanges``, ``bindings``; ``policies``, a name."""
        parts = (quote(part, safe="") for part in (kind, self.virtual_host, *name))
        return self.get("/" + "/".join(parts) + query)

    def named(self, kind: str) -> dict[str, dict[str, Any]]:
        """Queues or exchanges by name."""
        return {each["name"]: each for each in self.of(kind)}

    def held(self) -> dict[str, dict[str, int]]:
        """What each quorum queue held when it last counted: due, and not confirmed by the next queue yet
        (``messages_dlx``); with consumers; and ready, which over AMQP is 0 of a queue that takes longer than
        250 ms to answer. ``reductions`` differ at each count; one that has not counted yet is left out."""
        columns = "?columns=name,reductions,messages_ready,messages_unacknowledged,messages_dlx"
        found = self.of("queues", query=columns)
        return {q["name"]: q for q in found if "messages_dlx" in q and "reductions" in q}

    def get(self, path: str) -> Any:
        """An answer of the API: ``get("/nodes")``."""
        request = urllib.request.Request(self.place + path, headers=self._headers)
        told = f"the management API at {self.place}"
        try:
            with urllib.request.urlopen(request, timeout=10.0) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            told += f" answers {error.code} {error.reason} to {path}"
            if error.code >= 500:
                raise QueueUnavailable(f"{told}; try again later") from error
            raise ConfigurationError(
                f"{told}; check user, password and virtual host (the user needs the tag 'monitoring')"
            ) from error
        except (OSError, ValueError, HTTPException) as error:
            raise QueueUnavailable(
                f"{told} cannot be reached: {error}; enable it with: "
                "rabbitmq-plugins enable rabbitmq_management"
            ) from error


FRESH_SECONDS: Final = 60.0
"""How long to wait for counts that are newer than the question. A quorum queue counts every 5 s, the
management plugin collects every 5 s. Source: rabbitmq.com/docs/management, "Statistics Interval";
rabbit_quorum_queue.erl, TICK_INTERVAL."""

NEWER: Final = 2
"""Changes after which figures are surely newer than the first look: the first may have been under way."""

GIVE_URL: Final = (
    "give --management http://user:password@host:15672 (management_url=; the plugin is enabled with: "
    "rabbitmq-plugins enable rabbitmq_management)"
)


def uncounted(what: str) -> ConfigurationError:
    """AMQP alone cannot tell that an infrastructure is empty."""
    return ConfigurationError(
        f"it is unknown {what}: what the broker is handing over (messages_dlx) shows in its management "
        f"API only; {GIVE_URL}; or go ahead without it, with --force (force=True)"
    )


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
) -> dict[str, list[dict[str, int]]]:
    """What each queue of ``names`` holds: the broker's counts, one after the other, after so many of which
    the last is newer than this call. Takes 5 to 10 s."""
    patience = FRESH_SECONDS * changes / NEWER
    deadline = time.monotonic() + patience
    counts: dict[str, dict[int, dict[str, int]]] = {name: {} for name in names}
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
            counts[name][counted[name]["reductions"]] = counted[name]
        time.sleep(0.5)
    return {name: list(each.values()) for name, each in counts.items()}
