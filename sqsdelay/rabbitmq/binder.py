"""Bindings on a channel of their own: a refusal closes it, and must not end the publishing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import pika

from sqsdelay.rabbitmq.connection import translated
from sqsdelay.rabbitmq.jobs import BindJob


class Binder:
    """Makes bindings on a connection, one after the other. Not thread-safe.

    Args:
        connection: open, of pika's asynchronous kind.
        given: where to, for errors.
        on_answer: called whenever the broker has answered.
        monotonic: the clock.
    """

    def __init__(
        self,
        connection: Any,
        given: pika.connection.Parameters,
        *,
        on_answer: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._given = given
        self._on_answer = on_answer
        self._monotonic = monotonic
        self._unanswered: deque[tuple[float, BindJob]] = deque()
        self._channel: Any = None
        self._opening = False

    @property
    def oldest_at(self) -> float:
        """Since when the oldest binding waits for its answer; infinity where there is none."""
        return self._unanswered[0][0] if self._unanswered else inf

    def bind(self, job: BindJob) -> None:
        """Bind, and settle the job when the broker has answered."""
        self._unanswered.append((self._monotonic(), job))
        if self._channel is not None:
            self._ask(self._channel, job)
        else:
            self._open()

    def give_back(self) -> list[BindJob]:
        """All that is without an answer: to bind again is fine, on another connection."""
        jobs = [job for _, job in self._unanswered]
        self._unanswered.clear()
        return jobs

    def _open(self) -> None:
        if not self._opening and self._connection.is_open:
            self._opening = True
            self._connection.channel(on_open_callback=self._on_open)

    def _on_open(self, channel: Any) -> None:
        self._opening = False
        self._channel = channel
        channel.add_on_close_callback(self._on_closed)
        for _, job in list(self._unanswered):
            self._ask(channel, job)

    def _ask(self, channel: Any, job: BindJob) -> None:
        channel.queue_bind(
            job.queue, job.exchange, job.routing_key, callback=partial(self._on_bound, job)
        )

    def _on_bound(self, job: BindJob, _: Any) -> None:
        self._unanswered.popleft()
        job.settle()
        self._on_answer()

    def _on_closed(self, _: Any, reason: BaseException) -> None:
        """The broker answers in order: its refusal is of the oldest. The others are asked again."""
        self._channel = None
        if self._unanswered and self._connection.is_open:
            self._unanswered.popleft()[1].settle(translated(reason, self._given))
            self._on_answer()
        if self._unanswered:
            self._open()
