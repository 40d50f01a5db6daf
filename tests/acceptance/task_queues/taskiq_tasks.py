"""What the test adds to the guide's taskiq app; a worker imports this module by name."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from importlib import import_module
from typing import Annotated, Any

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends

sys.path.insert(0, os.environ["GUIDE_APP"])
make: Any = import_module("taskiq_aio_sqs").SQSBroker

from sqsdelay.taskiq import unrestricted_tasks  # noqa: E402

broker: Any = unrestricted_tasks(
    make(
        os.environ["QUEUE"],
        endpoint_url=os.environ["AWS_ENDPOINT_URL"],
        wait_time_seconds=1,
        max_number_of_messages=10,
    ),
    hop_seconds=int(os.environ["HOP"]),
)
broker.add_middlewares(SmartRetryMiddleware(default_retry_count=2, default_delay=6))


def tell(**what: Any) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


@broker.task  # type: ignore[untyped-decorator]
async def note(name: str) -> None:
    tell(ran=name, at=time.time())


@broker.task(retry_on_error=True)  # type: ignore[untyped-decorator]
async def stubborn(context: Annotated[Context, TaskiqDepends()]) -> None:
    retries = int(context.message.labels.get("_retries", 0))
    tell(ran=f"stubborn-{retries}", at=time.time())
    if retries == 0:
        raise RuntimeError("once more")


async def sending(delay: float) -> None:
    await broker.startup()
    started = time.time()
    await note.kicker().with_labels(delay=delay).kiq("relayed")
    await note.kicker().with_labels(delay=0.9).kiq("timer")
    await note.kiq("now")
    await stubborn.kiq()
    tell(started=started)
    await broker.shutdown()


def send(delay: float) -> None:
    """Send what is due after ``delay`` seconds, at once, and after a message timer."""
    asyncio.run(sending(delay))
