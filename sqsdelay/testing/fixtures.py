"""The pytest fixture of `sqsdelay.testing`."""

from __future__ import annotations

import pytest

from sqsdelay.testing.virtual_time import VirtualSqs


@pytest.fixture
def virtual_sqs() -> VirtualSqs:
    """SQS and sqsdelay in memory, under virtual time; each test gets its own."""
    return VirtualSqs()
