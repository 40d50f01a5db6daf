"""A private RabbitMQ node for tests: Debian's package, free ports, its own data, ended by its own pids.

With ``SQSDELAY_TEST_RABBITMQ=amqp://…`` (and ``SQSDELAY_TEST_RABBITMQ_MANAGEMENT=http://…``) the tests
use that broker instead; those that stop the broker still start a private one. With
``SQSDELAY_RABBITMQ4_HOME``, where a generic Unix archive of RabbitMQ 4 was unpacked, private ones are that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from tests.services import packages
from tests.services.network import bound

NEWER = os.environ.get("SQSDELAY_RABBITMQ4_HOME")
SERVER = Path(NEWER, "sbin") if NEWER else Path("/usr/lib/rabbitmq/bin")
SERVER /= "rabbitmq-server"
CTL = SERVER.with_name("rabbitmqctl")
POLICY = Path("/usr/sbin/policy-rc.d")
START_SECONDS: Final = 300
"""An idle machine takes three; a busy one has taken more than two minutes."""


def install() -> None:
    """Install Debian's package where it is missing, without starting its system-wide broker."""
    if SERVER.exists():
        return
    own_policy = not POLICY.exists()
    if own_policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        packages.install("rabbitmq-server", unless=SERVER.exists)
    finally:
        if own_policy:
            POLICY.unlink()


class RabbitNode:
    """One broker node. ``kill`` and ``start`` again keep its data.

    With ``tls_folder``, holding ``cert.pem`` and ``key.pem``, it also listens for TLS on ``tls_port``.
    With ``peer``, a running node, it joins that node's cluster the first time it starts.
    With ``feature_flags`` (names with commas) it starts with these alone, as one upgraded from of old.
    After ``confirm_timeout_seconds`` it tries to hand a message over again: as docs/rabbitmq-clusters.md
    recommends it; RabbitMQ's default is 180.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tls_folder: Path | None = None,
        feature_flags: str | None = None,
        peer: RabbitNode | None = None,
        confirm_timeout_seconds: int = 10,
    ) -> None:
        install()
        self.folder = folder
        self.tls_folder = tls_folder
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._has_run = False
        self._peer = peer
        self._confirm_timeout_seconds = confirm_timeout_seconds
        self._held = [bound() for _ in range(5)]
        own = (int(each.getsockname()[1]) for each in self._held)
        self.port, self.tls_port, self.management_port, self._dist_port, self.epmd_port = own
        if peer is not None:
            self.epmd_port = peer.epmd_port
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"
        self.management_url = f"http://guest:guest@127.0.0.1:{self.management_port}"
        self._configure()
        if feature_flags is not None:
            self.environment["RABBITMQ_FEATURE_FLAGS"] = feature_flags

    def _configure(self) -> None:
        for name in ("home", "log", "mnesia"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "plugins").write_text("[rabbitmq_management].\n")
        (self.folder / "env.conf").write_text("")
        (self.folder / "advanced.config").write_text(
            "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, "
            f"{self._confirm_timeout_seconds * 1000}}}]}}].\n"
        )
        (self.folder / "rabbit.conf").write_text(
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n"
            "vm_memory_high_watermark.relative = 0.9\ndisk_free_limit.absolute = 50MB\n"
            + (
                f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
                f"ssl_options.certfile = {self.tls_folder}/cert.pem\n"
                f"ssl_options.keyfile = {self.tls_folder}/key.pem\n"
                if self.tls_folder is not None
                else ""
            )
        )
        self.name = f"rabbit{self.port}@localhost"
        # Nodes of one cluster share the Erlang cookie, a file in their home.
        home = (self._peer or self).folder / "home"
        self.environment: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "ERL_CRASH_DUMP": str(self.folder / "erl_crash.dump"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbit.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
        }

    def start(self) -> None:
        """Start, and wait until it takes connections; again, on the ports and data it had before."""
        if not self._started():
            self.stop()
            log = (self.folder / "output").read_text()[-2000:]
            raise RuntimeError(f"RabbitMQ did not start:\n{log}")
        if self._peer is not None and not self._has_run:
            self.ctl("stop_app")
            self.ctl("join_cluster", self._peer.name)
            self.ctl("start_app")
        self._has_run = True

    def _started(self) -> bool:
        if self._epmd is None and self._peer is None:
            # Started by us, not by the node, so that it does not stay behind as a daemon.
            epmd = shutil.which("epmd") or "/usr/bin/epmd"
            self._epmd = subprocess.Popen([epmd], env=self.environment, stdout=subprocess.DEVNULL)
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [str(SERVER)],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.1)
        return False

    def _answers(self) -> bool:
        try:
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
        except (AMQPError, AMQPConnectorException, OSError):
            return False
        return True

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the node and its epmd for good."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
        for each in self._held:
            each.close()

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node."""
        done = subprocess.run(
            [str(CTL), "--quiet", *arguments],
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout


@contextmanager
def three_nodes(*, confirm_timeout_seconds: int = 10) -> Iterator[list[RabbitNode]]:
    """A cluster, with that setting made before there is a queue."""
    nodes: list[RabbitNode] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in range(3):
                nodes.append(
                    RabbitNode(
                        Path(folder, str(number)),
                        peer=nodes[0] if nodes else None,
                        confirm_timeout_seconds=confirm_timeout_seconds,
                    )
                )
                nodes[-1].start()
            yield nodes
        finally:
            for node in reversed(nodes):
                node.stop()
