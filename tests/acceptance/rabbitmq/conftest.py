"""A broker that may be killed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sqsdelay test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
