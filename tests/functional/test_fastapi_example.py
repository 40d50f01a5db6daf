"""The example service: requests that come together share calls, and a stopping server loses nothing."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from fastapi import FastAPI

from examples.fastapi_service import create_app
from sqsdelay import AsyncDelaySender, Message
from sqsdelay.testing import VirtualSqs

DUE = datetime(2027, 1, 2, tzinfo=UTC)
REMINDER = {"text": "renew", "due_at": DUE.isoformat()}


def served(sqs: VirtualSqs, *requests: tuple[str, str, Any]) -> list[httpx.Response]:
    """The answers to requests that come all at once."""
    sqs.create("orders")
    app: FastAPI = create_app(lambda: AsyncDelaySender(sqs.sender, linger_ms=50))

    async def serve() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):
            return await asyncio.gather(
                *(client.request(method, path, json=body) for method, path, body in requests)
            )

    return asyncio.run(serve())


def test_requests_that_come_together_share_calls() -> None:
    """Twenty reminders, each with an id of its own, in few calls; all arrive."""
    sqs = VirtualSqs()
    calls = []
    send_batch = sqs.queues.send_batch

    def counted(queue_url: str, entries: Any) -> Any:
        calls.append(len(entries))
        return send_batch(queue_url, entries)

    sqs.queues.send_batch = counted  # type: ignore[method-assign]
    answers = served(sqs, *[("POST", "/reminders", REMINDER)] * 20)
    assert {answer.status_code for answer in answers} == {202}
    ids = {answer.json()["message_id"] for answer in answers}
    assert (sum(calls), len(ids)) == (20, 20)
    assert len(calls) < 20
    sqs.queues.send_batch = send_batch  # type: ignore[method-assign]
    arrived = sqs.drain()
    assert {arrival.message_id for arrival in arrived} == ids
    assert all(timedelta(0) <= arrival.at - DUE < timedelta(seconds=1) for arrival in arrived)


def test_one_bad_request_is_its_own() -> None:
    """A due time beyond all limits is refused with the reason; the others are scheduled."""
    far = {"text": "x", "due_at": "2099-01-01T00:00:00Z"}
    good, bad, naive = served(
        VirtualSqs(),
        ("POST", "/reminders", REMINDER),
        ("POST", "/reminders", far),
        ("POST", "/reminders", {"text": "x", "due_at": "2027-01-02T00:00:00"}),
    )
    assert (good.status_code, bad.status_code, naive.status_code) == (202, 422, 422)
    assert "max_delay" in bad.text


def test_waiting_reminders_are_listed_and_cancelled() -> None:
    """With a store; without one the service says what is missing."""
    sqs = VirtualSqs(store=True)
    sqs.create("orders")
    sqs.sender.send_many("orders", [Message("x", due_at=DUE, message_id=f"m-{n}") for n in "ab"])
    app = create_app(lambda: AsyncDelaySender(sqs.sender))

    async def serve() -> tuple[Any, Any, Any]:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):
            before = (await client.get("/reminders")).json()
            cancelled = (await client.delete("/reminders/m-a")).json()
            return before, cancelled, (await client.get("/reminders")).json()

    before, cancelled, after = asyncio.run(serve())
    assert [each["message_id"] for each in before] == ["m-a", "m-b"]
    assert cancelled == {"outcome": "done"}
    assert after == before[1:]
    listed, deleted = served(
        VirtualSqs(), ("GET", "/reminders", None), ("DELETE", "/reminders/m", None)
    )
    assert listed.status_code == deleted.status_code == 501
    assert "without a store" in json.dumps(listed.json())
