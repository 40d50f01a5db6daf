"""Sending from asyncio over RabbitMQ: each task has its own result, whatever it was published with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sqsdelay import errors
from sqsdelay.errors import ConfigurationError, Unconfirmed
from sqsdelay.rabbitmq import AsyncRabbitMqSender, RabbitMqMessage, RabbitMqRoute, RabbitMqSender
from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import PATIENCE_SECONDS
from tests.services.network import DeafProxy

LONG = 1000.0
"""A linger in ms that no test waits for."""


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await work()

    asyncio.run(limited())


class Counted(RabbitMqSender):
    """Remembers how many messages each call had."""

    calls: list[int]

    def _send_each(self, messages):  # type: ignore[no-untyped-def]
        self.calls = [*getattr(self, "calls", []), len(messages)]
        return super()._send_each(messages)


@pytest.fixture
def ready(shared: Broker) -> Broker:
    shared.ready("orders")
    return shared


def test_tasks_share_calls_and_each_has_its_result_or_error(ready: Broker) -> None:
    """A bad delay is one task's error, a missing queue another's; the rest arrive, delayed or not."""
    counted = Counted(ready.url)

    async def work() -> None:
        async with AsyncRabbitMqSender(counted) as sender:
            sends = [
                sender.send("orders", str(n), delay=n % 2, message_id=str(n)) for n in range(1000)
            ]
            bad = [
                sender.send("orders", "bad", delay=-1),
                sender.send("nowhere", "lost", delay=1),
                sender.send("", "lost"),
            ]
            answers = await asyncio.gather(*sends, *bad, return_exceptions=True)
        *results, early, missing, invalid = answers
        kinds = [type(each) for each in (early, missing, invalid)]
        assert kinds == [errors.InvalidDelay, errors.QueueMissing, errors.InvalidEndpoint]
        routes = []
        for n, result in enumerate(results):
            assert not isinstance(result, BaseException)
            assert result.message_id == str(n)
            routes.append(result.route)
        assert routes == [RabbitMqRoute.DIRECT, RabbitMqRoute.DELAY_LEVEL] * 500

    run(work)
    assert len(counted.calls) <= 10
    assert ready.wait_count("orders", 1000) == 1000
    bodies = {body.decode() for _, _, body in ready.drain("orders")}
    assert bodies == {str(n) for n in range(1000)}


def test_a_cancelled_task_sends_nothing_and_closing_sends_what_waits(ready: Broker) -> None:
    """Later calls are refused."""
    sender = AsyncRabbitMqSender(RabbitMqSender(ready.url), linger_ms=LONG, max_waiting=2)

    async def work() -> None:
        async with sender:
            cancelled = asyncio.create_task(sender.send("orders", "cancelled"))
            waiting = asyncio.create_task(sender.send("orders", "waiting"))
            # There is room for two: this one waits until there is more.
            third = asyncio.create_task(sender.send("orders", "third"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.sleep(0)
            many = await sender.send_many("orders", [RabbitMqMessage("many")])
            assert [result.error for result in many] == [None]
        assert (await waiting).error is (await third).error is None
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(ConfigurationError, match="closed"):
            await sender.send("orders", "late")

    run(work)
    assert ready.wait_count("orders", 3) == 3
    assert sorted(body for _, _, body in ready.drain("orders")) == [b"many", b"third", b"waiting"]


def test_a_lost_connection_is_each_tasks_error(ready: Broker) -> None:
    """They may have been sent. The next are sent over a new connection."""
    with DeafProxy(ready.port) as proxy:
        sender = AsyncRabbitMqSender(RabbitMqSender(ready.through(proxy), confirm_seconds=1))

        async def work() -> None:
            async with sender:
                await sender.send("orders", "heard")
                proxy.swallowing.set()
                lost = await asyncio.gather(
                    *(sender.send("orders", "unheard") for _ in range(3)), return_exceptions=True
                )
                assert [type(error) for error in lost] == [Unconfirmed] * 3
                proxy.swallowing.clear()
                await sender.send("orders", "heard again")

        run(work)
    bodies = [body for _, _, body in ready.drain("orders")]
    assert bodies == [b"heard", *[b"unheard"] * 3, b"heard again"]
