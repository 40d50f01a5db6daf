"""A broker for the session, a virtual host for each test, and a broker that may be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.acceptance.rabbitmq.broker import Broker, virtual_host
from tests.services.rabbitmq import RabbitNode


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that ``SQSDELAY_TEST_RABBITMQ`` names, or a private one."""
    given = os.environ.get("SQSDELAY_TEST_RABBITMQ")
    if given is not None:
        yield Broker(given, os.environ["SQSDELAY_TEST_RABBITMQ_MANAGEMENT"])
        return
    private = RabbitNode(tmp_path_factory.mktemp("rabbitmq"))
    try:
        private.start()
        yield Broker(private.url, private.management_url)
    finally:
        private.stop()


@pytest.fixture
def broker(node: Broker, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A virtual host of the test's own."""
    name = f"sqsdelay-test {request.node.name}"
    yield virtual_host(node.url, node.management_url, name)
    virtual_host(node.url, node.management_url, name, method="DELETE")


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A private node for those who kill it."""
    private = RabbitNode(tmp_path_factory.mktemp("fragile"))
    try:
        private.start()
        yield private
    finally:
        private.stop()
