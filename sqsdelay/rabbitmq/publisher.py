"""Pipelined publishing from any thread: one connection, confirms as they come, a reconnect when lost."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import Final

import tenacity
from pika import BasicProperties

from sqsdelay.errors import (
    ConfigurationError,
    InvalidEndpoint,
    InvalidSetting,
    QueueUnavailable,
    SendFailed,
    SqsDelayError,
    Unconfirmed,
)
from sqsdelay.ports.forks import in_each_child
from sqsdelay.rabbitmq.confirms import BindJob, Job, Jobs, Publication
from sqsdelay.rabbitmq.connection import Address, first_that_opens, is_denied, place, translated
from sqsdelay.rabbitmq.link import MAYBE_SENT, Link
from sqsdelay.rabbitmq.topology import PROBE, Topology, routing_key

logger = logging.getLogger(__name__)

DEFAULT_CONFIRM_SECONDS: Final = 30.0
DEFAULT_CONNECT_SECONDS: Final = 30.0

SLOWEST_PER_SECOND: Final = 100
"""Confirmed messages a second with which a call may go on: a tenth of what one `send` at a time reaches
(`benchmarks.rabbitmq`). Each that is confirmed adds a hundredth of a second to its call's deadline."""


class _Call:
    """How far one call's jobs are."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.done = threading.Event()
        self.succeeded = 0
        self._left = len(jobs)
        self._lock = threading.Lock()
        note = self._note
        for job in jobs:
            job.on_settled = note

    def _note(self, job: Job) -> None:
        with self._lock:
            self._left -= 1
            self.succeeded += job.error is None
            if not self._left:
                self.done.set()


class Publisher:
    """Publishes with confirms. Thread-safe; nothing is opened before the first publication.

    A publication that was written to a connection is never written again: if its answer does not
    come, its error is `Unconfirmed`. One that was not written waits for the next connection.

    Args:
        given: where to.
        confirm_seconds: how long the broker may take to confirm.
        connect_seconds: how long to try to connect before what waits fails.
        blocked_seconds: how long a call waits for a broker that takes no messages.
    """

    def __init__(
        self,
        given: Address,
        *,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = DEFAULT_CONNECT_SECONDS,
        blocked_seconds: float = inf,
    ) -> None:
        if confirm_seconds <= 0 or connect_seconds <= 0:
            raise InvalidSetting(
                f"confirm_seconds={confirm_seconds}, connect_seconds={connect_seconds}; "
                "both must be more than 0"
            )
        self._given = given
        self._confirm_seconds = confirm_seconds
        self._connect_seconds = connect_seconds
        self._blocked_seconds = blocked_seconds
        self._closing = threading.Event()
        self._node = 0
        self._begin_anew()
        in_each_child(self, Publisher._begin_anew)

    def _begin_anew(self) -> None:
        """Without a connection or a thread. What an earlier process submitted is that one's to send."""
        closed = self._closing.is_set()
        self._jobs = Jobs()
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        if closed:
            self._closing.set()

    def publish(self, publications: Sequence[Publication], *, since: float | None = None) -> None:
        """Publish all, and wait until each is settled: by its answer, or by the call's deadline, which
        counts from ``since`` (by `time.monotonic`; now if left out). `Publication.error` says how."""
        self._do(time.monotonic() if since is None else since, publications=publications)

    def bind(
        self, endpoints: Iterable[str], topology: Topology, *, since: float
    ) -> dict[str, SqsDelayError]:
        """Bind endpoints, all at once, so that due messages reach their queues; again is fine.

        Returns:
            the errors by endpoint: `InvalidEndpoint`, `QueueMissing`, `ConfigurationError` (no such
            infrastructure, or no permission), `QueueUnavailable`.
        """
        errors: dict[str, SqsDelayError] = {}
        jobs: list[BindJob] = []
        for endpoint in endpoints:
            try:
                jobs.append(BindJob(endpoint, topology))
            except InvalidEndpoint as error:
                errors[endpoint] = error
        self._do(since, bindings=jobs)
        return errors | {job.endpoint: job.error for job in jobs if job.error is not None}

    def _do(
        self,
        began: float,
        *,
        publications: Sequence[Publication] = (),
        bindings: Sequence[BindJob] = (),
    ) -> None:
        """Hand jobs to the thread, and wait until each is settled: by the broker, or by the deadline."""
        jobs: list[Job] = [*publications, *bindings]
        if not jobs:
            return
        call = _Call(jobs)
        with self._changed:
            if self._closing.is_set():
                raise ConfigurationError("the sender is closed; create a new one")
            self._jobs.add(publications=publications, bindings=bindings)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sqsdelay-rabbitmq", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            if self._link is not None:
                self._link.wake()
        call_seconds = self._connect_seconds + self._confirm_seconds
        while not call.done.is_set():
            now, link = time.monotonic(), self._link
            blocked_at = inf if link is None else link.blocked_at
            deadline = began + call_seconds + call.succeeded / SLOWEST_PER_SECOND
            if now >= min(deadline, blocked_at + self._blocked_seconds):
                self._expire(call, now - began, "" if link is None else link.blocked)
                return
            call.done.wait(min(deadline - now, self._blocked_seconds / 4))

    def _expire(self, call: _Call, seconds: float, blocked: str) -> None:
        where = f"RabbitMQ at {place(self._given)}"
        untaken = QueueUnavailable(
            f"{where} did not take the message within {seconds:.3g} s{blocked}; it was not sent: try "
            "again later"
        )
        taken = Unconfirmed(
            f"{where} did not confirm the message within {seconds:.3g} s{blocked}; {MAYBE_SENT}"
        )
        for job in call.jobs:
            job.settle(taken, untaken=untaken)
        self._jobs.discard_settled()

    def catches(self, topology: Topology, *, since: float | None = None) -> bool:
        """Whether a due message that nobody is bound for has a place to go to, and holds up no other; an
        error if that could not be found out."""
        nobody = f"{PROBE}{uuid.uuid4()}"
        # Where it lands, it expires.
        properties = BasicProperties(expiration="0", message_id=nobody)
        probe = Publication(topology.delivery_exchange, routing_key(0, nobody), b"", properties)
        self.publish([probe], since=since)
        if isinstance(probe.error, SendFailed) and not probe.error.transient:
            return False
        if probe.error is not None:
            raise probe.error
        return True

    def close(self) -> None:
        """End the connection and the thread. What still waits fails."""
        with self._changed:
            self._closing.set()
            link, thread = self._link, self._thread
            self._changed.notify_all()
            if link is not None:
                link.wake(end=True)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        """The thread: connect whenever there is something to do, and serve until the link ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing.is_set())
                if self._closing.is_set():
                    break
            try:
                self._serve_one_link()
            except SqsDelayError as error:
                self._jobs.fail(error)
            except Exception as error:
                # Whatever it is, nobody may be left waiting for an answer.
                logger.exception("the connection to RabbitMQ at %s broke", place(self._given))
                self._jobs.fail(translated(error, self._given))
        self._jobs.fail(QueueUnavailable("the sender was closed before the message was sent"))

    def _serve_one_link(self) -> None:
        link = self._connect()
        try:
            with self._changed:
                self._link = link
                if self._closing.is_set():
                    link.end()
            link.serve()
        finally:
            with self._changed:
                self._link = None
            link.close()

    def _connect(self) -> Link:
        """To the node that answered last, or the next that does."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(self._connect_seconds),
                tenacity.stop_when_event_set(self._closing),
            ),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
            retry=tenacity.retry_if_exception(lambda error: not is_denied(error, self._given)),
            sleep=tenacity.sleep_using_event(self._closing),
            reraise=True,
        )
        link = partial(Link, jobs=self._jobs, confirm_seconds=self._confirm_seconds)
        try:
            opened: Link
            self._node, opened = retrying(first_that_opens, self._given, link, start=self._node)
        except Exception as error:
            raise translated(error, self._given) from error
        return opened
