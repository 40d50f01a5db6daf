"""A system with a fault of its own fails the suite: the zeros in the table are worth something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sqsdelay.core import outgoing
from sqsdelay.core.delay import BrokerClock, HandOver, decide
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.relaying.outcomes import Outcome
from sqsdelay.relaying.relay import Relay
from sqsdelay.sending.router import Router
from tests.simulation.tally import Tally
from tests.simulation.virtual_party import PartysQueues, Trouble
from tests.simulation.virtual_world import Plan, Run

CALLS = Plan(chances={Trouble.NOT_REACHED: 0.05, Trouble.ANSWER_LOST: 0.05})
DEATHS = Plan(chances={Trouble.KILLED_BEFORE: 0.02, Trouble.KILLED_AFTER: 0.02})
CLOCKS = Plan(chances={Trouble.STEPPED: 0.1, Trouble.NOT_REACHED: 0.1}, wrong_clocks=True)


def run(plan: Plan) -> Tally:
    return Run(plan, seed=1, messages=150).tally()


def test_a_relay_that_deletes_before_it_sends_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dying in between, it has lost the messages."""
    process = Relay.process

    def reckless(
        self: Relay, copies: Sequence[ReceivedMessage], *, delete: bool = True
    ) -> list[Outcome]:
        self._queues.delete_batch(self._queues.url(self.source), copies)
        return process(self, copies, delete=False)

    monkeypatch.setattr(Relay, "process", reckless)
    assert run(DEATHS).lost


def test_a_relay_that_takes_failures_for_success_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed entry is not a sent one."""
    monkeypatch.setattr(Relay, "_send", _careless(Relay._send))
    assert run(CALLS).lost


def _careless(send: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda self, *given: [None for _ in send(self, *given)]


def test_a_relay_by_the_wall_clock_is_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock ahead of the broker's makes it hand over too soon."""
    monkeypatch.setattr(BrokerClock, "now_ms", lambda self: self.local.now_ms())
    monkeypatch.setattr(Relay, "_broker_now", lambda self: self._queues.broker_clock.now_ms())
    assert run(CLOCKS).early


def test_a_relay_that_rounds_down_is_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """By less than a second, which is enough to be noticed."""

    def rounding_down(due_ms: int, now_ms: int, **arguments: Any) -> Any:
        decision = decide(due_ms, now_ms, **arguments)
        if isinstance(decision, HandOver):
            return HandOver(max(0, (due_ms - now_ms) // 1000))
        return decision

    monkeypatch.setattr("sqsdelay.relaying.relay.decide", rounding_down)
    assert run(Plan()).early


def test_a_storer_that_reads_its_own_clock_is_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative delay counts from the clock by which it is released."""
    plan = Plan(wrong_clocks=True, parked=True)
    assert not run(plan).early

    def own(self: Router, *_: Any) -> int:
        return self._queues.broker_clock.local.now_ms()

    monkeypatch.setattr(Router, "broker_latest", own)
    assert run(plan).early


def test_a_relay_without_deduplication_has_undocumented_duplicates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same copy requeued twice within 5 minutes must be one message."""
    count = iter(range(10**9))
    requeued = outgoing.requeued

    def always_new(*arguments: Any) -> Any:
        message = requeued(*arguments)
        return replace(message, deduplication_id=f"{message.deduplication_id}{next(count)}")

    monkeypatch.setattr("sqsdelay.core.outgoing.requeued", always_new)
    assert run(DEATHS).undocumented


def test_a_worker_that_forgets_has_undocumented_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sent on and failed to delete it must not send on again."""
    delete = Relay._delete

    def forgetful(self: Relay, url: str, settled: list[Outcome]) -> None:
        delete(self, url, settled)
        self._undeleted.clear()

    monkeypatch.setattr(Relay, "_delete", forgetful)
    assert run(CALLS).undocumented


def test_a_relay_that_drops_an_attribute_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user put on the message arrives."""
    all_of_them = outgoing.users_attributes

    def dropping(copy: ReceivedMessage) -> Any:
        return {k: v for k, v in all_of_them(copy).items() if k != "raw"}

    monkeypatch.setattr("sqsdelay.core.outgoing.users_attributes", dropping)
    assert run(Plan()).altered


def test_queues_that_forget_a_message_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a hundred sends is answered and not kept."""
    send_batch = PartysQueues.send_batch

    def leaky(self: PartysQueues, queue_url: str, entries: Sequence[Any]) -> list[Any]:
        answers = send_batch(self, queue_url, entries)
        if self.fate.random.random() < 0.01 and queue_url == "orders-delay.fifo":
            stored = self.queues._queues[queue_url].messages
            stored.pop(next(reversed(stored)))
        return answers

    monkeypatch.setattr(PartysQueues, "send_batch", leaky)
    assert run(CALLS).lost
