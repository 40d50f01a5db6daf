"""A web service that schedules reminders; requests that come together share calls to SQS.

    pip install fastapi uvicorn
    sqsdelay endpoint create orders
    uvicorn --factory examples.fastapi_service:create_app
    curl -d '{"text": "renew", "due_at": "2027-01-31T09:00:00Z"}' -H 'Content-Type: application/json' \
        http://127.0.0.1:8000/reminders

With a store reminders can be cancelled: REMINDERS_STORE=sqlite:///reminders.db; give the delay
consumer the same one (sqsdelay consume --store).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI, HTTPException
from pydantic import AwareDatetime, BaseModel

from sqsdelay import AsyncDelaySender, DelaySender
from sqsdelay.errors import InvalidDelay, InvalidMessage, NoStore, SqsDelayError
from sqsdelay.stores import open_store

ENDPOINT = "orders"


class Reminder(BaseModel):
    """What to say, and when."""

    text: str
    due_at: AwareDatetime


class Scheduled(BaseModel):
    """What to cancel it with, and when it is due."""

    message_id: str
    due_at: AwareDatetime


def default_sender() -> AsyncDelaySender:
    """Of the AWS account that the environment names."""
    store = os.environ.get("REMINDERS_STORE")
    if store is None:
        return AsyncDelaySender()
    return AsyncDelaySender(
        DelaySender(concurrency=16, store=lambda name: open_store(store, endpoint=name))
    )


def create_app(make_sender: Callable[[], AsyncDelaySender] = default_sender) -> FastAPI:
    """The service.

    Args:
        make_sender: called once, on the server's event loop; tests give one in virtual time.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # When the server stops, what waits is sent before the loop ends.
        async with make_sender() as app.state.sender:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/reminders", status_code=202)
    async def schedule(reminder: Reminder) -> Scheduled:
        sender: AsyncDelaySender = app.state.sender
        try:
            sent = await sender.send(ENDPOINT, reminder.text, due_at=reminder.due_at)
        except (InvalidDelay, InvalidMessage) as error:
            raise HTTPException(422, str(error)) from error
        except SqsDelayError as error:
            raise HTTPException(503, str(error)) from error
        return Scheduled(message_id=sent.message_id or "", due_at=sent.due or reminder.due_at)

    @app.get("/reminders")
    async def waiting() -> list[Scheduled]:
        sender: AsyncDelaySender = app.state.sender
        try:
            return [
                Scheduled(
                    message_id=message.message_id,
                    due_at=datetime.fromtimestamp(message.due_ms / 1000, UTC),
                )
                async for message in sender.pending(ENDPOINT)
            ]
        except NoStore as error:
            raise HTTPException(501, str(error)) from error

    @app.delete("/reminders/{message_id}")
    async def cancel(message_id: str) -> dict[str, str]:
        sender: AsyncDelaySender = app.state.sender
        try:
            return {"outcome": await sender.cancel(ENDPOINT, message_id)}
        except NoStore as error:
            raise HTTPException(501, str(error)) from error

    return app
