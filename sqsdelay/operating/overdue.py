"""What it means that parked messages are overdue, and what to do about it."""

from __future__ import annotations

from typing import Final

from sqsdelay.core.endpoint import Endpoint
from sqsdelay.limits import STORE_TABLE_SUFFIX

NOBODY: Final = "no dispatcher is running, or none is working"


def deployed_store(endpoint: Endpoint) -> str:
    """The URL of the store that ``npx cdk deploy -c store=dynamodb`` makes."""
    return f"dynamodb://{endpoint.name}{STORE_TABLE_SUFFIX}"


def overdue_remedy(endpoint: Endpoint, url: str) -> str:
    """What to do where nobody releases what is due."""
    if url == deployed_store(endpoint):
        return (
            f"run npx cdk deploy -c endpoint={endpoint.name} -c store=dynamodb, or "
            f"sqsdelay dispatch {endpoint.name} --store {url}"
        )
    # Not the URL, which may hold a password.
    return f"run sqsdelay dispatch {endpoint.name} --store (the same URL)"
