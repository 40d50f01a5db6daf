"""Operating an endpoint: its state, its error queue, moving its store."""

from sqsdelay.core.rejection import Rejection
from sqsdelay.operating.error_queue import Discard, ErrorQueue, Retry, RetryStatus
from sqsdelay.operating.status import (
    EndpointStatus,
    QueueStatus,
    StoreStatus,
    endpoint_status,
    store_status,
)

__all__ = [
    "Discard",
    "EndpointStatus",
    "ErrorQueue",
    "QueueStatus",
    "Rejection",
    "Retry",
    "RetryStatus",
    "StoreStatus",
    "endpoint_status",
    "store_status",
]
