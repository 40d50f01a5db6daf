"""Which way to deploy for a workload: hops alone, a DynamoDB or S3 store, or EventBridge Scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqsdelay.cost.bill import Bill
from sqsdelay.cost.prices import Prices
from sqsdelay.cost.s3_store import parked_in_s3, parked_in_s3_by_functions
from sqsdelay.cost.strategies import parked, relay, scheduled
from sqsdelay.cost.workload import Workload

DEPLOYED: Final[Mapping[str, Callable[[Workload, Prices], Bill]]] = {
    "no store": relay,
    "-c store=dynamodb": parked,
    "-c store=s3": parked_in_s3_by_functions,
    "-c store=scheduler": scheduled,
}
"""What `cdk deploy` is told, and what a message then costs that its sender sends to the delay queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The cheapest way to deploy.

    Args:
        deploy: what to tell ``cdk deploy``.
        bill: what it costs.
        others: the other ways that can hold the messages, the cheaper first.
        in_s3: what it costs with an S3 store and no functions: a worker and a dispatcher run on a
            machine, whose price is not in the bill.
    """

    deploy: str
    bill: Bill
    others: tuple[tuple[str, Bill], ...]
    in_s3: Bill


def recommend(load: Workload, prices: Prices) -> Recommendation:
    """The way with the lowest total; of equal ones that with the least to deploy."""
    found = [(deploy, way(load, prices)) for deploy, way in DEPLOYED.items()]
    possible = [(deploy, bill) for deploy, bill in found if bill.impossible is None]
    (deploy, bill), *others = sorted(possible, key=lambda each: each[1].total)
    return Recommendation(
        deploy=deploy, bill=bill, others=tuple(others), in_s3=parked_in_s3(load, prices)
    )
