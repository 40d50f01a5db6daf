"""The management API, and what waits in the levels and in the broker's dead-letter hand-over."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from sqsdelay.errors import ConfigurationError, InvalidSetting, QueueUnavailable
from sqsdelay.rabbitmq.connection import Session
from sqsdelay.rabbitmq.topology import Topology

TIMEOUT_SECONDS: Final = 10.0

STANDING_COUNTS: Final = 2
"""Further counts by which a hand-over is found to stand. One that goes on falls between two of them."""

_HELD: Final = "name,reductions,messages_unacknowledged,messages_dlx"


@dataclass(frozen=True, slots=True)
class Held:
    """What a quorum queue holds besides the messages that are ready, when it last counted.

    Args:
        dead_lettering: due, and not yet confirmed by the next queue (``messages_dlx``).
        unacknowledged: with a consumer.
        mark: another one each time the queue counts.
    """

    dead_lettering: int
    unacknowledged: int
    mark: int

    @property
    def unseen(self) -> int:
        """Messages that a passive declaration does not count."""
        return self.dead_lettering + self.unacknowledged


class Management:
    """Reads the management API of one virtual host. Changes nothing.

    Args:
        url: ``http://user:password@host:15672``, or ``https://…``.
        virtual_host: whose queues to read.

    Raises:
        ConfigurationError: no such URL. The message does not repeat it, for the password's sake.
    """

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
        self._authorization = "Basic " + base64.b64encode(login.encode("utf-8", "replace")).decode()
        host = parts.netloc.rpartition("@")[2]
        self._base = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/api", "", ""))
        self.virtual_host = virtual_host
        self._virtual_host = quote(virtual_host, safe="")

    def version(self) -> str:
        """The broker's version, e.g. ``3.10.8``."""
        return str(self._get("/overview")["rabbitmq_version"])

    def queues(self) -> dict[str, dict[str, Any]]:
        """Every queue of the virtual host by name, with ``arguments`` and ``effective_policy_definition``."""
        return {each["name"]: each for each in self._get(f"/queues/{self._virtual_host}")}

    def held(self) -> dict[str, Held]:
        """What each quorum queue holds, as it counted last; one that has not counted yet is left out."""
        rows = self._get(f"/queues/{self._virtual_host}?columns={_HELD}")
        return {
            row["name"]: Held(
                row["messages_dlx"], row.get("messages_unacknowledged", 0), row["reductions"]
            )
            for row in rows
            if "messages_dlx" in row and "reductions" in row
        }

    def nodes(self) -> list[dict[str, Any]]:
        """Every node of the cluster with its name and alarms."""
        return list(self._get("/nodes"))

    def policy_of_exchange(self, name: str) -> dict[str, Any]:
        """The definition of the policy that an exchange has; empty where it has none."""
        policy = self.exchanges().get(name, {}).get("policy")
        if not policy:
            return {}
        found = self._get(f"/policies/{self._virtual_host}/{quote(policy, safe='')}")
        return dict(found.get("definition") or {})

    def standing(self, before: Mapping[str, Held]) -> dict[str, int]:
        """Those queues that hand nothing over: at each of some newer counts, they hold as many messages as
        before or more. Takes up to 20 s, and no time where ``before`` holds none."""
        standing = {name: each.dead_lettering for name, each in before.items()}
        for _ in range(STANDING_COUNTS):
            standing = {name: count for name, count in standing.items() if count}
            found = held(self, standing) if standing else {}
            standing = {
                name: found[name].dead_lettering
                for name, count in standing.items()
                if found[name].dead_lettering >= count
            }
        return standing

    def feature_flags(self) -> dict[str, str]:
        """The state of each feature flag by name: ``enabled``, ``disabled``, …"""
        return {each["name"]: str(each["state"]) for each in self._get("/feature-flags")}

    @property
    def place(self) -> str:
        """Where it is, fit to be shown."""
        return self._base

    def exchanges(self) -> dict[str, dict[str, Any]]:
        """Every exchange of the virtual host by name, with ``arguments`` and ``policy``."""
        return {each["name"]: each for each in self._get(f"/exchanges/{self._virtual_host}")}

    def bindings(self) -> list[dict[str, Any]]:
        """Every binding of the virtual host."""
        return list(self._get(f"/bindings/{self._virtual_host}"))

    def _get(self, path: str) -> Any:
        """
        Raises:
            ConfigurationError: refused, or no management API there.
            QueueUnavailable: cannot be reached.
        """
        request = urllib.request.Request(
            self._base + path, headers={"Authorization": self._authorization}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise ConfigurationError(
                f"the management API at {self._base} answers {error.code} {error.reason} to {path}; "
                "check user, password and virtual host (the user needs the tag 'monitoring')"
            ) from error
        except (OSError, ValueError, HTTPException) as error:
            raise QueueUnavailable(
                f"the management API at {self._base} cannot be reached: {error}; enable it with: "
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

UNCOUNTED: Final = (
    "what the broker is handing over (messages_dlx) shows in its management API only; give "
    "--management http://user:password@host:15672 (management_url=; the plugin is enabled with: "
    "rabbitmq-plugins enable rabbitmq_management)"
)
"""Why AMQP alone cannot tell that an infrastructure is empty, and what can."""


def ready(session: Session, topology: Topology) -> dict[str, int]:
    """Messages that wait in each queue of the infrastructure, now; missing queues are left out.

    From the highest level down, as messages go: none slips past the count.
    """
    names = (queue.name for queue in reversed(list(topology.queues())))
    counts = {name: session.count(name) for name in names}
    return {name: count for name, count in counts.items() if count is not None}


def hand_overs(held: Iterable[str], topology: Topology) -> dict[str, str]:
    """The hand-over queues among these, each with its endpoint."""
    start = f"{topology.hand_over}."
    return {name: name.removeprefix(start) for name in held if name.startswith(start)}


def held(
    management: Management,
    names: Collection[str],
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Held]:
    """What each queue of ``names`` holds, counted by the broker after this call began: takes 5 to 10 s.

    Raises:
        ConfigurationError: the management API does not count these queues.
        QueueUnavailable: its counts do not change.
    """
    deadline = monotonic() + FRESH_SECONDS
    seen: dict[str, list[int]] = {name: [] for name in names}
    while True:
        counted = management.held()
        for name, marks in seen.items():
            now = counted.get(name)
            if now is not None and (not marks or marks[-1] != now.mark):
                marks.append(now.mark)
        found = {name: counted[name] for name in names if name in counted}
        stale = [name for name, marks in seen.items() if len(marks) <= NEWER]
        if not stale:
            return found
        if monotonic() > deadline:
            raise _uncounted(management, stale[0], known=bool(seen[stale[0]]))
        sleep(_POLL_SECONDS)


def _uncounted(management: Management, name: str, *, known: bool) -> Exception:
    if known:
        return QueueUnavailable(
            f"the counts of {name} in the management API at {management.place} did not change for "
            f"{FRESH_SECONDS:g} s, so they may be old; try again later, or skip this check with --force"
        )
    return ConfigurationError(
        f"the management API at {management.place} does not count the messages of {name}; give the URL "
        "of the same broker, with its statistics enabled (management.disable_stats = false), or skip "
        "this check with --force"
    )
