"""Two endpoints that would share their queues: found before a message goes to the wrong one."""

from __future__ import annotations

from collections.abc import Iterator

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.errors import ConfigurationError, QueueMissing, QueueUnavailable, QueueUnreachable
from sqsdelay.limits import DUE_QUEUE_SUFFIX, FIFO_SUFFIX, PARKING_QUEUE_SUFFIX
from sqsdelay.ports.queues import Queues


def refuse_collision(queues: Queues, endpoint: Endpoint) -> None:
    """Raise if another endpoint of the account has the same queues.

    Raises:
        ConfigurationError: it has, with what to do.
    """
    problem = collision(queues, endpoint)
    if problem is not None:
        raise ConfigurationError(problem)


def collision(queues: Queues, endpoint: Endpoint) -> str | None:
    """Why the endpoint cannot be, beside another; None when it can, or nobody may tell us.

    ``orders`` and ``orders.fifo`` would share ``orders-delay.fifo``. A FIFO queue beside a standard
    endpoint harms nobody while it is no endpoint itself, which its due queue shows.
    """
    twin_is_endpoint = endpoint.fifo or _exists(queues, endpoint.due_queue)
    if twin_is_endpoint and _exists(queues, endpoint.twin):
        return (
            f"{endpoint.name} would share the delay queue {endpoint.delay_queue.name} with "
            f"{endpoint.twin.name}, which exists; rename one of them"
        )
    for what, owner in _owners(endpoint.queue):
        if _exists(queues, owner.queue) and _exists(queues, owner.delay_queue):
            return f"{endpoint.name} is the {what} queue of the endpoint {owner.name}; rename the endpoint"
    return None


def _owners(queue: QueueRef) -> Iterator[tuple[str, Endpoint]]:
    """The endpoints that would have a queue of this name, and what it would be to them."""
    owned = {
        "due": (DUE_QUEUE_SUFFIX, (FIFO_SUFFIX,)),
        "parking": (PARKING_QUEUE_SUFFIX, ("", FIFO_SUFFIX)),
    }
    for what, (suffix, kinds) in owned.items():
        if queue.name.endswith(suffix):
            for kind in kinds:
                name = queue.name.removesuffix(suffix) + kind
                yield what, Endpoint(QueueRef(name, queue.account_id, queue.region))


def _exists(queues: Queues, queue: QueueRef) -> bool:
    try:
        queues.url(queue)
    except QueueUnreachable:
        raise  # Nothing else would be answered, either, and each call takes its time.
    except (QueueMissing, QueueUnavailable):
        # Denied: a policy that names our queues only is no reason to send nothing.
        return False
    return True
