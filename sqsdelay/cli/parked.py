"""What is parked for an endpoint: in the store that was named, or in the table its stack would make."""

from __future__ import annotations

from typing import Final

from sqsdelay.cli.options import opened_place, optional_place
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import StoreError
from sqsdelay.limits import STORE_TABLE_SUFFIX
from sqsdelay.operating.status import StoreStatus, store_status

NOBODY: Final = "no dispatcher is running, or none is working"


def parked_messages(
    endpoint: Endpoint, store: str | None, table: str | None, schema: str | None, *, now_ms: int
) -> tuple[str, StoreStatus] | None:
    """The store's URL and how it is doing; None where there is no store that is known of.

    Without a store named it is the DynamoDB table a deployment makes for the endpoint, if it is there
    and may be read: one that was let go of may hold messages still.

    Raises:
        BadParameter: a table or schema, and no store.
        ConfigurationError, StoreMissing, StoreUnavailable: of a store that was named.
    """
    with optional_place(endpoint.name, store, table, schema) as opened:
        if opened is not None:
            return store or "", store_status(opened, now_ms=now_ms)
    url = deployed_store(endpoint)
    try:
        with opened_place(endpoint.name, url, None, None) as opened:
            return url, store_status(opened, now_ms=now_ms)
    except StoreError:
        return None


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
