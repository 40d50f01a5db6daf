"""Two endpoints that would share their queues: found before a message goes to the wrong one."""

from __future__ import annotations

from sqsdelay.core.endpoint import Endpoint, QueueRef
from sqsdelay.errors import ConfigurationError, QueueMissing, QueueUnavailable, QueueUnreachable
from sqsdelay.limits import DUE_QUEUE_SUFFIX, FIFO_SUFFIX
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
            f"{endpoint.twin.name}, which exists; name one of them otherwise"
        )
    owner = _owner(endpoint.queue)
    if owner is not None and _exists(queues, owner.queue) and _exists(queues, owner.delay_queue):
        return (
            f"{endpoint.name} is the due queue of the endpoint {owner.name}; "
            "name the endpoint otherwise"
        )
    return None


def _owner(queue: QueueRef) -> Endpoint | None:
    """The FIFO endpoint whose due queue would have this name."""
    if not queue.name.endswith(DUE_QUEUE_SUFFIX):
        return None
    name = queue.name.removesuffix(DUE_QUEUE_SUFFIX) + FIFO_SUFFIX
    return Endpoint(QueueRef(name, queue.account_id, queue.region))


def _exists(queues: Queues, queue: QueueRef) -> bool:
    try:
        queues.url(queue)
    except QueueUnreachable:
        raise  # Nothing else would be answered, either, and each call takes its time.
    except (QueueMissing, QueueUnavailable):
        # Denied: a policy that names our queues only is no reason to send nothing.
        return False
    return True
