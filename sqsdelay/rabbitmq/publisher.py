"""Pipelined publishing from any thread: one connection, confirms as they come, a reconnect when lost."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

import tenacity
from pika import BasicProperties

from sqsdelay import errors
from sqsdelay.core.delay import check_range
from sqsdelay.ports import in_each_child
from sqsdelay.rabbitmq.connection import Address, Wire, translated
from sqsdelay.rabbitmq.link import MAYBE_SENT, Jobs, Link, Publication
from sqsdelay.rabbitmq.topology import PROBE, Topology, routing_key

logger = logging.getLogger(__name__)

DEFAULT_CONFIRM_SECONDS: Final = 30.0
DEFAULT_CONNECT_SECONDS: Final = 30.0

SLOWEST_PER_SECOND: Final = 100
"""Confirmed messages a second with which a call may go on: a tenth of what one `send` at a time reaches
(`benchmarks.rabbitmq`). Each that is confirmed adds a hundredth of a second to its call's deadline."""


class Publisher:
    """Publishes with confirms. Thread-safe; nothing is opened before the first publication. A publication
    that was written to a connection is never written again: if its answer does not come, its error is
    `Unconfirmed`. One that was not written waits for the next connection. A call waits at most
    ``blocked_seconds`` for a broker that takes no messages."""

    def __init__(
        self,
        given: Address,
        confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
        connect_seconds: float = DEFAULT_CONNECT_SECONDS,
        *,
        blocked_seconds: float = inf,
    ) -> None:
        check_range(0.01, confirm_seconds=confirm_seconds, connect_seconds=connect_seconds)
        self._given = given
        self._confirm_seconds = confirm_seconds
        self._connect_seconds = connect_seconds
        self._blocked_seconds = blocked_seconds
        self._closed = False
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

    def publish(self, publications: Iterable[Publication], *, since: float | None = None) -> None:
        """Publish, and wait until each is settled: by its answer, or by the call's deadline, counted from
        ``since`` (by `time.monotonic`; now if left out)."""
        began = time.monotonic() if since is None else since
        waiting = [each for each in publications if not each.settled]
        if not waiting:
            return
        done, left = threading.Event(), len(waiting)

        def note(_: Publication) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        def submit() -> None:
            for each in waiting:
                each.on_settled = note
            self._jobs.add(waiting)
            if self._link is not None:
                self._link.pump()

        hand_in = None
        try:
            with self._lock:
                if self._closed:
                    raise errors.ConfigurationError("the sender is closed; create a new one")
                if self._thread is None:
                    try:
                        self._wire = Wire()
                        thread = threading.Thread(None, self._run, "sqsdelay-rabbitmq", daemon=True)
                        thread.start()
                    except (OSError, RuntimeError) as error:
                        if isinstance(error, RuntimeError):  # no thread is left; files are
                            self._wire.close()
                        for each in waiting:
                            each.settle(translated(error, self._given))
                        return
                    self._thread = thread
                hand_in = self._wire.loop.add_callback_threadsafe
                hand_in(submit)
            while not done.wait(min(1.0, self._confirm_seconds / 4)):
                hand_in(lambda: self._end_late(waiting, began))
        except BaseException:  # interrupted: nobody waits for what would be sent later
            if hand_in is not None:
                hand_in(lambda: self._end_late(waiting, -inf))
            raise

    def _end_late(self, publications: Sequence[Publication], began: float) -> None:
        """Settle what has no answer by the call's deadline."""
        took, blocked = time.monotonic() - began, "" if self._link is None else self._link.blocked
        confirmed = sum(each.settled and each.error is None for each in publications)
        patience = self._connect_seconds + self._confirm_seconds + confirmed / SLOWEST_PER_SECOND
        if took < (min(patience, self._blocked_seconds) if blocked else patience):
            return
        where, within = f"RabbitMQ at {self._given}", f"the message within {took:.3g} s{blocked}"
        not_sent = f"{where} did not take {within}; it was not sent: try again later"
        untaken = errors.QueueUnavailable(not_sent)
        taken = errors.Unconfirmed(f"{where} did not confirm {within}; {MAYBE_SENT}")
        for each in publications:
            each.settle(taken if each.written else untaken)
        self._jobs.discard_settled()

    def uncaught(
        self, topology: Topology, since: float | None = None
    ) -> errors.SqsDelayError | None:
        """Why to delay nothing there: a due message that nobody is bound for has no place to go to, and holds
        up all others; or that could not be found out."""
        nobody = f"{PROBE}{uuid.uuid4()}"
        properties = BasicProperties(expiration="0", message_id=nobody)  # it expires where it lands
        probe = Publication(topology.delivery_exchange, routing_key(0, nobody), b"", properties)
        self.publish([probe], since=since)
        if not isinstance(probe.error, errors.SendFailed) or probe.error.transient:
            return probe.error
        problem = topology.uncaught(self._given.virtual_host)
        return errors.ConfigurationError(
            f"{problem.subject} {problem.text}; set the policy: {problem.remedy} -- or use a prefix of your "
            "own, or accept it with without_alternate_exchange=True (--without-alternate-exchange)"
        )

    def close(self) -> None:
        """End the connection and the thread. What still waits fails."""

        def end() -> None:
            self._ending = True
            if self._link is not None:
                self._link.end()

        with self._lock:
            self._closed, thread = True, self._thread
        if thread is not None:
            self._wire.loop.add_callback_threadsafe(end)
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
            except Exception as error:
                # Whatever it is, nobody may be left waiting for an answer.
                if not isinstance(error, errors.SqsDelayError):
                    logger.exception("the connection to RabbitMQ at %s broke", self._given)
                self._jobs.fail(translated(error, self._given))
            finally:
                self._link = None
        closed = errors.QueueUnavailable("the sender was closed before the message was sent")
        self._jobs.fail(closed)
        self._wire.close()

    def _connect(self) -> Link:
        """To the node that answered last, or the next that does."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._connect_seconds),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
            retry=tenacity.retry_if_exception(
                lambda error: not (self._ending or isinstance(error, errors.ConfigurationError))
            ),
            sleep=lambda seconds: self._wire.wait(lambda: self._ending, seconds),
            reraise=True,
        )
        link = retrying(Link, self._given, self._wire, self._jobs, self._confirm_seconds)
        first = link.given.nodes.index(link.at.nodes[0])
        self._given = Address(link.given.nodes[first:] + link.given.nodes[:first])
        return link
