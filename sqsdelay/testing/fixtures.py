"""The pytest fixture of `sqsdelay.testing`; pytest finds it by itself where sqsdelay is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sqsdelay.testing.virtual_time import VirtualSqs


@pytest.fixture
def virtual_sqs() -> VirtualSqs:
    """SQS and sqsdelay in memory, under virtual time; each test gets its own."""
    # Every run of pytest where sqsdelay is installed imports this module.
    from sqsdelay.testing.virtual_time import VirtualSqs

    return VirtualSqs()
