"""What the test adds to the guide's Dramatiq app; a worker imports this module by name."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

sys.path.insert(0, os.environ["GUIDE_APP"])
import_module("tasks")
dramatiq: Any = import_module("dramatiq")

from sqsdelay.dramatiq import unrestricted_actors  # noqa: E402

broker = unrestricted_actors(dramatiq.get_broker(), hop_seconds=int(os.environ["HOP"]))
broker.namespace = os.environ["NAMESPACE"]


attempts: list[float] = []  # of the one stubborn message, in the one worker


def tell(**what: Any) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())  # whole lines, from any thread


@dramatiq.actor  # type: ignore[untyped-decorator]
def note(name: str) -> None:
    tell(ran=name, at=time.time())


@dramatiq.actor(max_retries=1, min_backoff=6000, max_backoff=8000)  # type: ignore[untyped-decorator]
def stubborn() -> None:
    attempts.append(time.time())
    tell(ran=f"stubborn-{len(attempts) - 1}", at=attempts[-1])
    if len(attempts) == 1:
        raise RuntimeError("once more")


def send(delay: float) -> None:
    """Send what is due after ``delay`` seconds, at once, and after a message timer."""
    started = time.time()
    note.send_with_options(args=("relayed",), delay=round(delay * 1000))
    note.send_with_options(args=("timer",), delay=900)
    note.send("now")
    stubborn.send()
    tell(started=started)
