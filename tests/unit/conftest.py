"""An endpoint in memory under virtual time; a file whose endpoint is another has fixtures of its own."""

from __future__ import annotations

import pytest

from sqsdelay.testing import InMemoryQueues, InMemoryStore, ManualClock


@pytest.fixture
def queues(clock: ManualClock) -> InMemoryQueues:
    queues = InMemoryQueues(clock)
    queues.create_endpoint("orders")
    return queues


@pytest.fixture
def store(clock: ManualClock) -> InMemoryStore:
    return InMemoryStore(clock)
