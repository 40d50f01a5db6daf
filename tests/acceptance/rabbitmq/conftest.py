"""A broker that may be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.rabbitmq import RabbitNode


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A private node for those who kill it."""
    private = RabbitNode(tmp_path_factory.mktemp("fragile"))
    try:
        private.start()
        yield private
    finally:
        private.stop()
