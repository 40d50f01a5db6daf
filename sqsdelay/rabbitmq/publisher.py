"""Pipelined publishing from any thread: one connection, confirms as they come, a reconnect when lost."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, Final

import tenacity
from pika import BasicProperties

from sqsdelay import errors
from sqsdelay.core.readable import Problem
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.ports import in_each_child
from sqsdelay.rabbitmq.connection import Address, Wire, place, translated
from sqsdelay.rabbitmq.link import MAYBE_SENT, Job, Jobs, Link, Publication
from sqsdelay.rabbitmq.topology import PROBE, Topology, routing_key

logger = logging.getLogger(__name__)

DEFAULT_CONFIRM_SECONDS: Final = 30.0
DEFAULT_CONNECT_SECONDS: Final = 30.0

SLOWEST_PER_SECOND: Final = 100
"""Confirmed messages a second with which a call may go on: a tenth of what one `send` at a time reaches
(`benchmarks.rabbitmq`). Each that is confirmed adds a hundredth of a second to its call's deadline."""


class _Call:
    """How far one call's jobs are. Touched by the publisher's thread alone, but for ``done``."""

    def __init__(self, jobs: Sequence[Job], began: float) -> None:
        self.jobs = jobs
        self.began = began
        self.done = threading.Event()
        self.confirmed = 0
        self.timer: Any = None
        self._left = len(jobs)
        for job in jobs:
            job.on_settled = self._note

    def _note(self, job: Job) -> None:
        self._left -= 1
        self.confirmed += job.written and job.error is None
        if not self._left:
            if self.timer is not None:
                self.timer.cancel()
            self.done.set()


class Publisher:
    """Publishes with confirms. Thread-safe; nothing is opened before the first publication. A publication
    that was written to a connection is never written again: if its answer does not come, its error is
    `Unconfirmed`. One that was not written waits for the next connection. A call waits at most
    ``blocked_seconds`` for a broker that takes no messages."""

    def __init__(
        self,
        given: Address,
        *,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = DEFAULT_CONNECT_SECONDS,
        blocked_seconds: float = inf,
    ) -> None:
        if confirm_seconds <= 0 or connect_seconds <= 0:
            raise errors.InvalidSetting(
                f"confirm_seconds={confirm_seconds}, connect_seconds={connect_seconds}; "
                "both must be more than 0"
            )
        self._given = given
        self._confirm_seconds = confirm_seconds
        self._connect_seconds = connect_seconds
        self._blocked_seconds = blocked_seconds
        self._closed = False
        self._node = 0
        self._begin_anew()
        in_each_child(self, Publisher._begin_anew)

    def _begin_anew(self) -> None:
        """Without a connection or a thread. What an earlier process submitted is that one's to send."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # The rest is the thread's own.
        self._jobs = Jobs()
        self._link: Link | None = None
        self._ending = False

    def publish(self, jobs: Iterable[Job], *, since: float | None = None) -> None:
        """Bind, publish, and wait until each is settled: by its answer, or by the call's deadline, counted
        from ``since`` (by `time.monotonic`; now if left out). A binding stands before what waits for it."""
        jobs = [job for job in jobs if not job.settled]
        if not jobs:
            return
        call = _Call(jobs, time.monotonic() if since is None else since)

        def submit() -> None:
            self._watch(call)
            self._jobs.add(job for job in jobs if not job.settled)
            if self._link is not None:
                self._link.pump()

        with self._lock:
            if self._closed:
                raise ConfigurationError("the sender is closed; create a new one")
            if self._thread is None:
                try:
                    self._wire = Wire()
                    thread = threading.Thread(
                        target=self._run, name="sqsdelay-rabbitmq", daemon=True
                    )
                    thread.start()
                except (OSError, RuntimeError) as error:
                    for job in jobs:
                        job.settle(translated(error, self._given))
                    if isinstance(error, RuntimeError):  # no thread, rather than no file, is left
                        self._wire.close()
                    return
                self._thread = thread
            self._wire.loop.add_callback_threadsafe(submit)
        call.done.wait()

    def _watch(self, call: _Call) -> None:
        """Settle what has no answer by the call's deadline, or look again then."""
        now, link = time.monotonic(), self._link
        patience = self._connect_seconds + self._confirm_seconds
        deadline = call.began + patience + call.confirmed / SLOWEST_PER_SECOND
        blocked_at, blocked = (inf, "") if link is None else (link.blocked_at, link.blocked)
        left = min(deadline, blocked_at + self._blocked_seconds) - now
        if left > 0:
            look_again = partial(self._watch, call)
            call.timer = self._wire.call_later(min(left, self._blocked_seconds / 4), look_again)
            return
        within = f"the message within {now - call.began:.3g} s{blocked}"
        where = f"RabbitMQ at {place(self._given)}"
        untaken = errors.QueueUnavailable(
            f"{where} did not take {within}; it was not sent: try again later"
        )
        taken = errors.Unconfirmed(f"{where} did not confirm {within}; {MAYBE_SENT}")
        for job in call.jobs:
            job.settle(taken if job.written else untaken)
        self._jobs.discard_settled()

    def uncaught(self, topology: Topology, *, since: float | None = None) -> Problem | None:
        """What is wrong where a due message that nobody is bound for has no place to go to, and holds up all
        others; an error if that could not be found out."""
        nobody = f"{PROBE}{uuid.uuid4()}"
        # Where it lands, it expires.
        properties = BasicProperties(expiration="0", message_id=nobody)
        probe = Publication(topology.delivery_exchange, routing_key(0, nobody), b"", properties)
        self.publish([probe], since=since)
        if isinstance(probe.error, errors.SendFailed) and not probe.error.transient:
            return topology.uncaught(self._given.virtual_host)
        if probe.error is not None:
            raise probe.error
        return None

    def close(self) -> None:
        """End the connection and the thread. What still waits fails."""

        def end() -> None:
            self._ending = True
            if self._link is not None:
                self._link.end()

        with self._lock:
            if self._thread is not None and not self._closed:
                self._wire.loop.add_callback_threadsafe(end)
            self._closed, thread = True, self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        """The thread: connect whenever there is something to do, and serve until the link ends."""
        while not self._ending:
            try:
                self._wire.wait(lambda: self._jobs or self._ending)
                if not self._ending:
                    self._link = self._connect()
                    # It may have been closed meanwhile.
                    (self._link.disconnect if self._ending else self._link.serve)()
            except SqsDelayError as error:
                self._jobs.fail(error)
            except Exception as error:
                # Whatever it is, nobody may be left waiting for an answer.
                logger.exception("the connection to RabbitMQ at %s broke", place(self._given))
                self._jobs.fail(translated(error, self._given))
            finally:
                self._link = None
        self._jobs.fail(
            errors.QueueUnavailable("the sender was closed before the message was sent")
        )
        self._wire.close()

    def _connect(self) -> Link:
        """To the node that answered last, or the next that does."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._connect_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
            retry=tenacity.retry_if_exception(
                lambda error: not (self._ending or isinstance(error, ConfigurationError))
            ),
            sleep=lambda seconds: self._wire.wait(lambda: self._ending, seconds),
            reraise=True,
        )
        opened = partial(Link, self._given, self._wire, self._jobs, start=self._node)
        link = retrying(opened, confirm_seconds=self._confirm_seconds)
        self._node = link.node
        return link
