"""The instant that ``delay_seconds`` counts from: one for all attempts on a row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from sqsdelay.core.clock import SystemClock
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.locations import opened
from sqsdelay.spark.sink.options import Options

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_DATE_RESOLUTION_MS: Final = 1000
"""SQS dates its answers in whole seconds."""

INSTEAD: Final = (
    "give due_at instead: current_timestamp() + make_dt_interval(0, 0, 0, delay_seconds)"
)


def planned_ms(options: Options, client: SQSClient) -> int:
    """Now, for a job that is being planned, epoch milliseconds, not before the broker's now.

    By the broker's clock where the options name an endpoint to ask, which must exist.

    Raises:
        QueueMissing: it does not.
        QueueUnavailable, InvalidEndpoint: it could not be asked.
    """
    if options.endpoint is None:
        return SystemClock().now_ms()
    from sqsdelay.sqs.queues import SqsQueues  # Not for a commit, see `sqsdelay.spark.sink.job`.

    queues = SqsQueues(client)
    queues.synchronise(Endpoint.parse(options.endpoint).queue)
    # What an answer's date proves is up to a second in the past: nothing may be due too early.
    return queues.broker_clock.now_ms() + _DATE_RESOLUTION_MS


def micro_batch_ms(checkpoint: str | None, batch_id: int) -> int:
    """The time of a stream's micro-batch, which is also its ``current_timestamp()``.

    Spark writes it to the checkpoint before the micro-batch is run, and keeps it when the
    micro-batch is run again, be it days later.

    Raises:
        ConfigurationError: it cannot be read.
    """
    if checkpoint is None:
        raise ConfigurationError(
            "delay_seconds of a stream counts from the micro-batch's time in the checkpoint: "
            f"option('checkpointLocation', …) must be given on the query itself; or {INSTEAD}"
        )
    system, root = opened(checkpoint, "checkpointLocation")
    file = f"{root}/offsets/{batch_id}"
    try:
        with system.open_input_stream(file) as stream:
            _, metadata = stream.read().decode().splitlines()[:2]
        return int(json.loads(metadata)["batchTimestampMs"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"the micro-batch's time cannot be read from {file} ({error}); {INSTEAD}"
        ) from error
