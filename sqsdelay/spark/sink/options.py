"""What the data source ``sqsdelay`` can be told, parsed and checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sqsdelay.core.delay import check_hop, checked_max_delay
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import InvalidSetting
from sqsdelay.limits import DEFAULT_HOP_SECONDS, DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.parking.parking import DEFAULT_PARK_AFTER_SECONDS
from sqsdelay.spark.locations import absolute, is_uri

DEFAULT_CONCURRENCY: Final = 32
"""Batches one task keeps in flight: threads hide the service's latency, and add no CPU."""

DEFAULT_RETRY_SECONDS: Final = 60
"""How long a task goes on while SQS takes none of its rows; each row that is taken starts it anew."""

DEFAULT_KEY: Final = "key"
_LEAST: Final = {
    "concurrency": 1,
    "hop_seconds": 1,
    "max_delay_seconds": 1,
    "retry_seconds": 0,
    "rate": 1,
    "tasks": 1,
    "batch": 0,
    "park_after": 0,
    "replay": 1,
}
"""Options that are whole numbers, each with the least it can be."""

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one write.

    Args:
        endpoint: where rows go that name no endpoint.
        key: the column that, with ``job``, makes a message id for rows that bring none.
        job: the job's name. Run again under the same name, a job sends the same ids.
        rejects: folder for rows that cannot be sent; without one such rows fail the job.
        summary: file for the job's counts; for a stream a folder with a file per micro-batch.
        receipts: folder in which the job notes what it sent: run again, it sends only the rest.
        batch: the number of a stream's micro-batch, within ``foreachBatch``.
        replay: rows are sent again that the receipts show as sent; when that began, epoch milliseconds.
        plan: send nothing, and tell in the summary what sending would come to.
        past_due: ``send`` what is due already at once, or ``reject`` it.
        rate: messages a second that the whole job sends at most.
        tasks: how many of its tasks run at a time: each sends its share of ``rate``.
        store: the URL of the store of each endpoint, where messages due far ahead are parked at once.
        park_after: seconds above which they are.
        ledger: folder, on local or shared disks, for a ledger file of each process that sends.
        concurrency: batches one task keeps in flight.
        hop_seconds: the delay queues' delivery delay.
        max_delay_seconds: how far ahead a row may be due, as the delay consumer has it.
        retry_seconds: how long a task goes on while SQS takes none of its rows.
        region, endpoint_url: as of a boto3 client; left out, as boto3 finds them.
        checkpoint: the stream's checkpoint folder.
    """

    endpoint: str | None = None
    key: str = DEFAULT_KEY
    job: str | None = None
    rejects: str | None = None
    summary: str | None = None
    receipts: str | None = None
    batch: int | None = None
    replay: int | None = None
    plan: bool = False
    past_due: str = "send"
    rate: int | None = None
    tasks: int | None = None
    store: str | None = None
    park_after: int = DEFAULT_PARK_AFTER_SECONDS
    ledger: str | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    retry_seconds: int = DEFAULT_RETRY_SECONDS
    region: str | None = None
    endpoint_url: str | None = None
    checkpoint: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """The options as Spark hands them over: texts, names in any case.

        Raises:
            ConfigurationError: an unknown name, or a value out of range.
            InvalidEndpoint: the endpoint is none.
        """
        lowered = {name.lower(): value for name, value in given.items()}
        known = {field.name for field in fields(cls)} - {"checkpoint"}
        if unknown := sorted(set(lowered) - known - _SPARKS_OWN):
            raise InvalidSetting(
                f"option {unknown[0]!r} is unknown; known are {', '.join(sorted(known))}"
            )
        values: dict[str, Any] = {name: lowered[name] for name in known if name in lowered}
        for name, least in _LEAST.items():
            if name in values:
                values[name] = _whole(name, values[name], least)
        if "plan" in values:
            values["plan"] = _truth("plan", values["plan"])
        for name in ("rejects", "summary", "receipts", "ledger"):
            if name in values:
                values[name] = absolute(values[name])
        if is_uri(values.get("ledger", "")):
            raise InvalidSetting(
                f"option ledger={values['ledger']!r} is a URI; ledger files grow line by line, which "
                "only a disk takes: give a folder on a local or shared disk"
            )
        options = cls(**values, checkpoint=lowered.get("checkpointlocation"))
        options._check()
        check_hop(options.hop_seconds)
        checked_max_delay(options.max_delay_seconds)
        if options.endpoint is not None:
            Endpoint.parse(options.endpoint)
        return options

    def _check(self) -> None:
        if self.past_due not in ("send", "reject"):
            raise InvalidSetting(f"option past_due={self.past_due!r}; use send or reject")
        if self.receipts is not None and not self.job:
            raise InvalidSetting(
                "receipts are kept under the job's name; give it one: option('job', 'renewals-2027')"
            )
        if self.replay is not None and self.receipts is None:
            raise InvalidSetting("option replay needs option('receipts', …), the job's")
        if self.rate is not None and self.tasks is None:
            raise InvalidSetting(
                f"option rate={self.rate} is for the whole job; a task sends its share of it if told "
                "how many run at a time: option('tasks', 8), e.g. the cluster's cores"
            )
        if self.store is None and self.park_after != DEFAULT_PARK_AFTER_SECONDS:
            raise InvalidSetting(f"option park_after={self.park_after} needs option('store', …)")


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidSetting(f"option {name}={text!r}; use true or false")
    return text.lower() == "true"


def _whole(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidSetting(f"option {name}={text!r}; use a whole number, {least} or more")
    return value
