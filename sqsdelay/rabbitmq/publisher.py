"""Pipelined publishing from any thread: one connection, confirms as they come, a reconnect when lost."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

import tenacity

from sqsdelay.clock import Clock, SystemClock
from sqsdelay.errors import ConfigurationError, QueueUnavailable, SqsDelayError
from sqsdelay.rabbitmq.confirms import Publication
from sqsdelay.rabbitmq.connection import Address, is_denied, place, translated
from sqsdelay.rabbitmq.link import BindJob, Job, Link

logger = logging.getLogger(__name__)

DEFAULT_CONFIRM_SECONDS: Final = 30.0
DEFAULT_CONNECT_SECONDS: Final = 30.0


class Publisher:
    """Publishes with confirms. Thread-safe; nothing is opened before the first publication.

    A publication that was written to a connection is never written again: if its answer does not
    come, its error is `Unconfirmed`. One that was not written waits for the next connection.

    Args:
        given: where to.
        confirm_seconds: how long the broker may take to confirm.
        connect_seconds: how long to try to connect before what waits fails.
        clock: the monotonic clock.
    """

    def __init__(
        self,
        given: Address,
        *,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = DEFAULT_CONNECT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if confirm_seconds <= 0 or connect_seconds <= 0:
            raise ConfigurationError(
                f"confirm_seconds={confirm_seconds}, connect_seconds={connect_seconds}; "
                "both must be more than 0"
            )
        self._given = given
        self._confirm_seconds = confirm_seconds
        self._connect_seconds = connect_seconds
        self._clock = clock or SystemClock()
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._node = 0
        self.connections = 0
        """Connections opened so far: what was learned on an earlier one may no longer hold."""

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish all, and wait until each is settled; `Publication.error` says how."""
        if not publications:
            return
        left = len(publications)
        done = threading.Event()

        def settled() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        for publication in publications:
            publication.on_settled = settled
        self._submit(publications)
        done.wait()

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue to an exchange; again is fine.

        Raises:
            QueueMissing: there is no such queue.
            ConfigurationError: there is no such exchange, or no permission.
            QueueUnavailable: the broker cannot be reached.
        """
        done = threading.Event()
        errors: list[SqsDelayError | None] = []

        def on_done(error: SqsDelayError | None) -> None:
            errors.append(error)
            done.set()

        self._submit([BindJob(queue, exchange, routing_key, on_done)])
        done.wait()
        if errors[0] is not None:
            raise errors[0]

    def close(self) -> None:
        """End the connection and the thread. What still waits fails."""
        with self._changed:
            self._closing.set()
            link, thread = self._link, self._thread
            self._changed.notify_all()
            if link is not None:
                link.wake(close=True)
        if thread is not None:
            thread.join()

    def _submit(self, jobs: Sequence[Job]) -> None:
        with self._changed:
            if self._closing.is_set():
                raise ConfigurationError("the sender is closed; make a new one")
            self._jobs.extend(jobs)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sqsdelay-rabbitmq", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            if self._link is not None:
                self._link.wake()

    def _run(self) -> None:
        """The thread: connect whenever there is something to do, and serve until the link ends."""
        while self._wait_for_jobs():
            try:
                self._serve_one_link()
            except SqsDelayError as error:
                self._fail_waiting(error)
            except Exception as error:
                # Whatever it is, nobody may be left waiting for an answer.
                logger.exception("the connection to RabbitMQ at %s broke", place(self._given))
                self._fail_waiting(translated(error, self._given))
        self._fail_waiting(QueueUnavailable("the sender was closed before the message was sent"))

    def _serve_one_link(self) -> None:
        link = self._connect()
        try:
            with self._changed:
                self._link = link
                if self._closing.is_set():
                    link.close()
            link.serve()
        finally:
            with self._changed:
                self._link = None
            link.dispose()

    def _wait_for_jobs(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing.is_set())
            return not self._closing.is_set()

    def _connect(self) -> Link:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(self._connect_seconds),
                tenacity.stop_when_event_set(self._closing),
            ),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
            retry=tenacity.retry_if_exception(lambda error: not is_denied(error)),
            sleep=tenacity.sleep_using_event(self._closing),
            reraise=True,
        )
        try:
            link = retrying(self._open)
        except Exception as error:
            raise translated(error, self._given) from error
        self.connections += 1
        return link

    def _open(self) -> Link:
        """To the node that answered last, or the next that does.

        Raises:
            what pika raised for the last node, rather for one that a later attempt may cure.
        """
        nodes, errors = self._given.nodes, []
        for offset in range(len(nodes)):
            number = (self._node + offset) % len(nodes)
            link = Link(
                nodes[number], self._jobs, confirm_seconds=self._confirm_seconds, clock=self._clock
            )
            try:
                link.open()
            except Exception as error:
                errors.append(error)
            else:
                self._node = number
                return link
        raise next((each for each in errors if not is_denied(each)), errors[-1])

    def _fail_waiting(self, error: SqsDelayError) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            if isinstance(job, BindJob):
                job.on_done(error)
            else:
                job.settle(error)

    def __repr__(self) -> str:
        return f"Publisher({place(self._given)})"
