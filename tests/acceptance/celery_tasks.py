"""What the tests add to the guide's app: tasks that tell when they ran, and a look into the worker's memory.

A worker imports this module by name; ``GUIDE_APP`` is the folder with the guide's ``tasks.py``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from celery import chain, chord, signals

from tests.patience import PATIENCE_SECONDS

sys.path.insert(0, os.environ["GUIDE_APP"])
app: Any = import_module("tasks").app
control: Any = import_module("celery.worker.control")

app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    result_backend=f"file://{os.environ['RESULTS']}",
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)
app.conf.broker_transport_options = {
    **app.conf.broker_transport_options,
    "visibility_timeout": int(os.environ["VISIBILITY"]),
    "hop_seconds": int(os.environ["HOP"]),
    "wait_time_seconds": 1,
    "polling_interval": 0.1,
}
if os.environ.get("PLAIN"):
    app.conf.broker_transport = None


def tell(**what: Any) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())  # whole lines, from any thread


@app.task(bind=True)  # type: ignore[untyped-decorator]
def note(self: Any, name: str) -> str:
    tell(ran=name, at=time.time(), id=self.request.id, eta=self.request.eta)
    return name


@app.task(bind=True, max_retries=2)  # type: ignore[untyped-decorator]
def stubborn(self: Any, name: str, countdown: float) -> str:
    tell(ran=f"{name}-{self.request.retries}", at=time.time())
    if self.request.retries < self.max_retries:
        raise self.retry(countdown=countdown)
    return name


@app.task  # type: ignore[untyped-decorator]
def joined(names: list[str], last: str) -> str:
    tell(ran="+".join(sorted(names)) + last, at=time.time())
    return "+".join(sorted(names)) + last


def send(countdown: float, *, workflows: bool) -> None:
    """Send tasks that are due in ``countdown`` seconds, tell when that is, and wait for all results.

    Args:
        workflows: also retries, a chain and a chord, delayed.
    """
    due = datetime.now(UTC) + timedelta(seconds=countdown)
    results = [note.apply_async((f"countdown-{n}",), countdown=countdown) for n in range(3)]
    results.append(note.apply_async(("eta",), eta=due))
    tell(due=due.timestamp(), ids=[result.id for result in results])
    if workflows:
        retried = countdown / 2
        results.append(stubborn.delay("stubborn", retried))
        results.append(chain(note.si("first"), note.si("second").set(countdown=retried)).delay())
        both = chord([note.si("a"), note.si("b")], joined.s("!"))
        results.append(both.apply_async(countdown=retried))
    tell(results=[result.get(timeout=PATIENCE_SECONDS) for result in results])


@signals.worker_ready.connect
def watch_memory(sender: Any, **_: Any) -> None:
    """Tell what `celery inspect scheduled` would: SQS carries no remote control."""

    def watch() -> None:
        while True:
            now = datetime.now(UTC)
            # One that is due is on its way through the timer this moment: not held.
            held = control.scheduled(SimpleNamespace(consumer=sender))
            tell(held=[e["request"]["id"] for e in held if datetime.fromisoformat(e["eta"]) > now])
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()
