"""An endpoint in memory under virtual time; a file whose endpoint is another has fixtures of its own."""

from __future__ import annotations

import pytest

from sqsdelay.testing import InMemoryStore, ManualClock
from tests.faulty import FaultyQueues


@pytest.fixture
def queues(clock: ManualClock) -> FaultyQueues:
    queues = FaultyQueues(clock)
    queues.create_endpoint("orders")
    return queues


@pytest.fixture
def store(clock: ManualClock) -> InMemoryStore:
    return InMemoryStore(clock)
