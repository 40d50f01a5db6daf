"""Names of the queues beside a destination."""

from __future__ import annotations

from sqsdelay.limits import FIFO_SUFFIX


def beside(endpoint: str, suffix: str) -> str:
    """As `Endpoint` names them, also where ``endpoint`` is a token, which only standard ones are."""
    return endpoint.removesuffix(FIFO_SUFFIX) + suffix
