"""What is parked for an endpoint: in the store that was named, or in the table its stack would make."""

from __future__ import annotations

from sqsdelay.cli.options import opened_place, optional_place
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import StoreError
from sqsdelay.operating.overdue import deployed_store
from sqsdelay.operating.status import StoreStatus, store_status


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
