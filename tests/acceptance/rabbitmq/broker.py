"""What the tests do on a broker besides calling sqsdelay: virtual hosts, queues, an inbox, a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
import uuid
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit

import pika
from pika import BasicProperties

from sqsdelay.rabbitmq import Problem, RabbitMqMessage, RabbitMqSender, Topology, declare, verify
from sqsdelay.rabbitmq.link import Publication
from sqsdelay.rabbitmq.management import Management
from sqsdelay.rabbitmq.topology import OWN_PREFIX, routing_key
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.network import TcpProxy
from tests.services.processes import run

OF_LEVELS = re.compile(r"\.delay-(level-\d\d|undeliverable)$")
QUORUM = {"x-queue-type": "quorum"}
REGISTERED_SECONDS = 2
"""RabbitMQ 3.10 writes down half a second later that a quorum queue exists; see docs/rabbitmq-clusters.md."""


@dataclass(frozen=True)
class Broker:
    """A virtual host of its own on a broker."""

    url: str
    management_url: str

    @property
    def virtual_host(self) -> str:
        return urlsplit(self.url).path[1:]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def through(self, proxy: TcpProxy) -> str:
        """The URL by way of a proxy."""
        return self.url.replace(f":{self.port}", f":{proxy.port}")

    def user(
        self,
        name: str,
        *,
        configure: str = ".*",
        write: str = ".*",
        password: str | None = None,
        tags: str = "",
    ) -> str:
        """The URL of a new user, whose password is the name."""
        manage(self.management_url, "users", name, password=password or name, tags=tags)
        may = {"configure": configure, "write": write, "read": ".*"}
        manage(self.management_url, "permissions", unquote(self.virtual_host), name, **may)
        return self.url.replace("guest:guest@", f"{name}:{name}@")

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A quorum queue may lose what a connection that closes has not seen confirmed."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def queue(self, name: str, arguments: Mapping[str, Any] = QUORUM) -> None:
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, arguments=dict(arguments))

    def ready(self, *queues: str, prefix: str = OWN_PREFIX) -> Topology:
        """A delay infrastructure, and these queues."""
        topology = Topology(prefix)
        declare(self.url, topology)
        for queue in queues:
            self.queue(queue)
        return topology

    def clear(self) -> None:
        """Leave levels only, and empty."""
        names = Management(self.management_url, unquote(self.virtual_host)).named("queues")
        with self.channel() as channel:
            for name in sorted(names, key=lambda name: OF_LEVELS.search(name) is not None):
                if OF_LEVELS.search(name):
                    channel.queue_purge(name)
                else:
                    channel.queue_delete(name)

    def problems(self, topology: Topology) -> list[Problem]:
        """What `verify` finds, but for RabbitMQ 4's delivery limit, which NServiceBus's levels have."""
        found = verify(self.url, topology, management_url=self.management_url)
        return [each for each in found if "'s delivery limit of 20" not in each.text]

    def delete_queue(self, name: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(name)

    def count(self, queue: str) -> int:
        """Asked again where it is none: so says the broker, too, of a quorum queue that has not answered
        within a quarter of a second."""
        with self.channel() as channel:
            asked = (channel.queue_declare(queue, passive=True) for _ in range(3))
            return next((n for each in asked if (n := int(each.method.message_count))), 0)

    def wait_count(self, queue: str, wanted: int, *, seconds: float = PATIENCE_SECONDS) -> int:
        """The queue's count, as soon as it is ``wanted`` or time is up."""
        deadline = time.monotonic() + seconds
        while (count := self.count(queue)) != wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        return count

    def drain(self, queue: str) -> list[tuple[str, Any, bytes]]:
        """Take all that is in a queue: routing keys, properties, bodies."""
        taken: list[tuple[str, Any, bytes]] = []
        with self.channel() as channel:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                taken.append((str(got[0].routing_key), got[1], got[2] or b""))
        return taken

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``sqsdelay rabbitmq …`` in a process of its own."""
        return run("rabbitmq", *arguments, env=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SQSDELAY_RABBITMQ_URL": self.url}


def manage(management_url: str, *path: str, method: str = "PUT", **settings: Any) -> None:
    """Make something on a broker, as `rabbitmqctl` would in a tenth of its time (or, with DELETE, unmake
    it)."""
    parts = urlsplit(management_url)
    login = b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(
        "/".join([f"{parts.scheme}://{host}/api", *(quote(part, safe="") for part in path)]),
        json.dumps(settings).encode(),
        method=method,
        headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=PATIENCE_SECONDS).close()


def virtual_host(url: str, management_url: str, name: str, *, method: str = "PUT") -> Broker:
    """Make (or, with DELETE, unmake) a virtual host."""
    manage(management_url, "vhosts", name, method=method)
    own = urlsplit(url)
    return Broker(f"{own.scheme}://{own.netloc}/{quote(name, safe='')}", management_url)


@contextmanager
def own_virtual_host(url: str, management_url: str, name: str) -> Iterator[Broker]:
    """A virtual host, empty at first though a run was killed, gone with all that is in it at the end."""
    with suppress(HTTPError):
        virtual_host(url, management_url, name, method="DELETE")
    yield virtual_host(url, management_url, name)
    virtual_host(url, management_url, name, method="DELETE")


@dataclass(frozen=True)
class Arrival:
    at_ms: float
    routing_key: str
    properties: Any
    body: bytes

    @property
    def late_ms(self) -> float:
        """After the due time that the test wrote into the message, or else sqsdelay."""
        headers = self.properties.headers
        return self.at_ms - float(headers.get("due-ms") or headers["sqsdelay.WasDueAt"])


def check_whole(arrivals: Collection[Arrival], count: int) -> None:
    """Bodies are numbers from 0 on: none lost, none twice, none early."""
    assert sorted(int(each.body) for each in arrivals) == list(range(count))
    assert min(each.late_ms for each in arrivals) >= 0


class Inbox:
    """Consumes a queue in a thread and notes when each message came."""

    def __init__(self, url: str, queue: str) -> None:
        self.arrivals: list[Arrival] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._consume, args=(url, queue))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait(self, count: int, *, seconds: float = PATIENCE_SECONDS) -> list[Arrival]:
        """The arrivals, as soon as there are ``count`` or time is up."""
        deadline = time.monotonic() + seconds
        while len(self.arrivals) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.arrivals

    def _consume(self, url: str, queue: str) -> None:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            for method, properties, body in channel.consume(
                queue, auto_ack=True, inactivity_timeout=0.1
            ):
                if method is not None:
                    self.arrivals.append(
                        Arrival(time.time() * 1000, method.routing_key, properties, body or b"")
                    )
                if self._stopping.is_set():
                    break
            channel.cancel()


def until_confirmed(sender: RabbitMqSender, body: str) -> None:
    """Send it to ``orders`` until it is confirmed: a busy broker may take longer than this sender waits."""
    message = RabbitMqMessage(body)
    wait_for(lambda: sender.send_many("orders", [message])[0].error is None)


def due(exchange: str, endpoint: str) -> Publication:
    """A message that is due now, to a delivery exchange."""
    properties = BasicProperties(delivery_mode=2, message_id=str(uuid.uuid4()))
    return Publication(exchange, routing_key(1, endpoint), b"", properties)
