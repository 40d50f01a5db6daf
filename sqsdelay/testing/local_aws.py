"""A local AWS (ministack, from PyPI) in its own process, for the demo, tests and trying things out."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sqsdelay.errors import SqsDelayError

REGION: Final = "us-east-1"
START_TIMEOUT_SECONDS: Final = 120
"""An idle machine takes two; one with fifteen times its work took a minute."""

PORTS: Final = (20_000, 32_000)
"""Below those that Linux (from 32,768) and macOS give to outgoing connections."""

_PORTS_TRIED: Final = 5
_HEALTH_PATH: Final = "/_ministack/health"


class LocalAwsError(SqsDelayError):
    """The local AWS could not be started."""


class LocalAws:
    """A context manager: a local AWS on a loopback port, gone with all it holds at the end.

    Args:
        environment: more of ministack's settings, e.g. ``{"AUTH": "true"}``.
        port: to listen on, 1 to 65,535; a free one if left out.

    Raises:
        LocalAwsError: ministack is not installed, did not answer within two minutes, or found the port
            given in use.
    """

    def __init__(
        self, environment: dict[str, str] | None = None, *, port: int | None = None
    ) -> None:
        self._extra = environment or {}
        self._given_port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="sqsdelay-local-aws-")
        self.port = 0

    @property
    def endpoint_url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def _tls(self) -> bool:
        return self._extra.get("USE_SSL") == "1"

    @property
    def _certificate(self) -> Path:
        """Made by ministack for itself, under its TMPDIR."""
        return Path(self._folder.name) / "ministack-tls" / "server.crt"

    @property
    def log_path(self) -> Path:
        """What the local AWS printed."""
        return Path(self._folder.name) / "ministack.log"

    def environment(self) -> dict[str, str]:
        """Environment variables that point the AWS CLI, boto3 and the CDK at this local AWS alone."""
        trusting = ("AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS") if self._tls else ()
        return dict.fromkeys(trusting, str(self._certificate)) | {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str, **arguments: Any) -> Any:
        """A boto3 client of ``service`` on this local AWS; ``arguments`` go to boto3."""
        import boto3

        make: Any = boto3.client
        settings = {
            "endpoint_url": self.endpoint_url,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "region_name": REGION,
            "verify": str(self._certificate) if self._tls else None,
        }
        return make(service, **(settings | arguments))

    def start(self) -> None:
        """Start it and wait until it answers; where another program was quicker, on another port."""
        if find_spec("ministack") is None:
            raise LocalAwsError("ministack is not installed; pip install 'sqsdelay[demo]'")
        try:
            for _ in range(_PORTS_TRIED):
                self.port = self._given_port or free_port()
                self._launch()
                if self._await_answer():
                    return
                tail = self.log_path.read_text(errors="replace")[-2000:]
                self._end()
                if "in use" not in tail:
                    break
                if self._given_port is not None:
                    used = f"port {self.port} is in use; give another, or leave it out"
                    raise LocalAwsError(used)
            raise LocalAwsError(
                f"ministack did not answer on {self.endpoint_url} within {START_TIMEOUT_SECONDS} s; "
                f"its last output:\n{tail}"
            )
        except BaseException:
            self.stop()  # Also where a signal ends this process meanwhile.
            raise

    def _launch(self) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        settings = {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "MINISTACK_HOST": "127.0.0.1",
            "MINISTACK_REGION": REGION,
            "TMPDIR": self._folder.name,
            "S3_DATA_DIR": str(Path(self._folder.name) / "s3"),
            "LOG_LEVEL": "WARNING",
            "IOT_MTLS_ENABLED": "0",  # it would listen on all interfaces
        }
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ministack"],
                env=inherited | settings | self._extra,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder.name,
            )

    def _await_answer(self) -> bool:
        """Whether it answers; False once it has ended, or has taken too long."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.05)
        return False

    def _answers(self) -> bool:
        # Written once ministack has found its port free: until then another program answers there.
        if not (Path(self._folder.name) / f"ministack-{self.port}.pid").exists():
            return False
        if self._tls:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        try:
            with urllib.request.urlopen(self.endpoint_url + _HEALTH_PATH, timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def stop(self) -> None:
        """Stop it; everything in it is gone."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> LocalAws:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A loopback port that nobody has, for a program that cannot choose its own. Until that program has
    bound it, another may: who starts it tries again with another port. No outgoing connection takes it
    meanwhile."""
    while True:
        port = random.randint(*PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
