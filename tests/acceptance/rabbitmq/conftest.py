"""A broker that may be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.rabbitmq.broker import Broker, own_virtual_host
from tests.services.rabbitmq import RabbitNode


@pytest.fixture(scope="package")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A private node for those who kill it, and start it again."""
    private = RabbitNode(tmp_path_factory.mktemp("fragile"))
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
