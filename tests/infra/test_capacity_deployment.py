"""The capacity simulation counts on the deployment as it is."""

from __future__ import annotations

from benchmarks.capacity.figures import DEPLOYED
from sqsdelay.cdk import delay_consumer_function, dispatcher_function
from sqsdelay.stores.dynamodb import table


def test_the_simulation_has_the_deployments_settings() -> None:
    """A changed concurrency, timeout or thread count must change docs/capacity.md too."""
    assert DEPLOYED.max_concurrency == delay_consumer_function.DEFAULT_MAX_CONCURRENCY
    assert DEPLOYED.dispatcher_timeout_seconds == dispatcher_function.TIMEOUT_SECONDS
    assert DEPLOYED.dispatcher_runs == dispatcher_function.CONCURRENCY
    assert DEPLOYED.dynamodb_threads == table.CONCURRENCY
