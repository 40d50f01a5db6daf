"""A broker that may be killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.rabbitmq.broker import Broker, own_virtual_host
from tests.services.rabbitmq import RabbitNode


@pytest.fixture(scope="package")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A private node for those who kill it, and start it again. It also speaks TLS."""
    folder = tmp_path_factory.mktemp("fragile")
    write_certificate(folder)
    private = RabbitNode(folder / "node", tls_folder=folder)
    try:
        private.start()
        yield private
    finally:
        private.stop()


@pytest.fixture
def fragile_broker(fragile: RabbitNode, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A virtual host of the test's own on it."""
    name = f"sqsdelay-test {request.node.name}"
    with own_virtual_host(fragile.url, fragile.management_url, name) as broker:
        yield broker


def write_certificate(folder: Path) -> None:
    """``cert.pem`` and ``key.pem``, signed by itself."""
    name = ["-subj", "/CN=sqsdelay test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-nodes"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(["openssl", "req", "-x509", "-days", "2", *key, *name, *files], check=True)
