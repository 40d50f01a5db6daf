"""`DelayConsumer`: the relay as a worker process, long-polling one endpoint's delay queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import tenacity

from sqsdelay.consumer import DEFAULT_MAX_RECEIVES, Outcome, Relay, check_max_receives
from sqsdelay.decision import check_hop
from sqsdelay.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, QueueUnavailable
from sqsdelay.limits import MAX_MESSAGE_TIMER_SECONDS, MAX_RECEIVE_WAIT_SECONDS
from sqsdelay.sqs.client import default_client
from sqsdelay.sqs.endpoints import delay_queue_problems
from sqsdelay.sqs.queues import SqsQueues

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.clock import Clock

logger = logging.getLogger(__name__)

DEFAULT_RECEIVERS: Final = 2
MAX_PAUSE_SECONDS: Final = 30


class DelayConsumer:
    """Serves the delay queue of one endpoint until told to stop.

    Args:
        endpoint: the destination queue's name, URL or ARN.
        client: a boto3 SQS client; made from the default session when left out.
        hop_seconds: the shortest delivery delay the delay queue may have.
        receivers: receive loops side by side.
        wait_seconds: long poll, 0 to 20.
        max_receives: receives after which a copy SQS keeps refusing goes to the error queue.
        on_outcomes: called after each batch, from the receivers' threads.
        clock: the local clock.

    Raises:
        InvalidEndpoint, ConfigurationError: a setting out of range.
    """

    def __init__(
        self,
        endpoint: str,
        client: SQSClient | None = None,
        *,
        hop_seconds: int = MAX_MESSAGE_TIMER_SECONDS,
        receivers: int = DEFAULT_RECEIVERS,
        wait_seconds: int = MAX_RECEIVE_WAIT_SECONDS,
        max_receives: int = DEFAULT_MAX_RECEIVES,
        on_outcomes: Callable[[Sequence[Outcome]], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if receivers < 1:
            raise ConfigurationError(f"receivers={receivers}; use 1 or more")
        if not 0 <= wait_seconds <= MAX_RECEIVE_WAIT_SECONDS:
            raise ConfigurationError(
                f"wait_seconds={wait_seconds}; use 0 to {MAX_RECEIVE_WAIT_SECONDS}"
            )
        check_hop(hop_seconds)
        check_max_receives(max_receives)
        self.endpoint = Endpoint.parse(endpoint)
        self._queues = SqsQueues(client or default_client(connections=2 * receivers), clock=clock)
        self._hop_seconds = hop_seconds
        self._receivers = receivers
        self._wait_seconds = wait_seconds
        self._max_receives = max_receives
        self._on_outcomes = on_outcomes
        self._relay: Relay | None = None

    def start(self) -> None:
        """Check the delay queue and take its actual delay as the hop. `run` and `poll` call it.

        Raises:
            ConfigurationError: the delay queue does not fit (its delay is shorter than the hop, it
                keeps messages too short, it has a redrive policy).
            QueueMissing, QueueUnavailable: the delay queue cannot be asked.
        """
        self._relay = checked_relay(
            self._queues,
            self.endpoint,
            hop_seconds=self._hop_seconds,
            max_receives=self._max_receives,
        )

    def poll(self, *, wait_seconds: int | None = None) -> list[Outcome]:
        """Receive one batch, relay it, settle it.

        Returns:
            An outcome per copy received; empty when none came within ``wait_seconds``.

        Raises:
            ConfigurationError, QueueMissing, QueueUnavailable
        """
        if self._relay is None:
            self.start()
        assert self._relay is not None
        url = self._queues.url(self.endpoint.delay_queue)
        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        copies = self._queues.receive_batch(url, wait_seconds=wait)
        if not copies:
            return []
        outcomes = self._relay.process(copies)
        if self._on_outcomes is not None:
            self._on_outcomes(outcomes)
        return outcomes

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set; then finish the batches in hand and return.

        While SQS cannot be reached, at the start or later, it waits, up to 30 s between attempts.

        Raises:
            ConfigurationError, QueueMissing: from `start`, before any receive.
        """
        _waiting(stop, tenacity.retry_if_exception_type(QueueUnavailable))(self.start)
        with ThreadPoolExecutor(self._receivers, thread_name_prefix="receiver") as pool:
            receivers = [pool.submit(self._receive_until, stop) for _ in range(self._receivers)]
            for receiver in receivers:
                receiver.result()

    def _receive_until(self, stop: threading.Event) -> None:
        # Whatever goes wrong with one batch, its copies come back; a receiver must not die of it.
        waiting = _waiting(stop, tenacity.retry_if_exception_type(Exception))
        while not stop.is_set():
            waiting(self.poll)


def checked_relay(
    queues: SqsQueues, endpoint: Endpoint, *, hop_seconds: int, max_receives: int
) -> Relay:
    """A relay for the delay queue as it is deployed; worker and function start with it.

    Raises:
        ConfigurationError: the delay queue does not fit, and what to mend.
        QueueMissing, QueueUnavailable: it cannot be asked.
    """
    name = endpoint.delay_queue.name
    attributes = queues.attributes(queues.url(endpoint.delay_queue))
    for problem in delay_queue_problems(name, attributes, hop_seconds=hop_seconds):
        text = f"{problem.queue}: {problem.text}; mend it with: {problem.remedy}"
        if problem.fatal:
            raise ConfigurationError(text)
        logger.warning(text)
    # Requeueing costs what the queue's delay is, whatever the setting says.
    deployed = int(attributes["DelaySeconds"])
    return Relay(queues, endpoint, hop_seconds=deployed, max_receives=max_receives)


def _waiting(stop: threading.Event, retry: tenacity.retry_base) -> tenacity.Retrying:
    """Retries with growing pauses until it works or ``stop`` is set."""
    return tenacity.Retrying(
        retry=retry,
        wait=tenacity.wait_random_exponential(multiplier=1, max=MAX_PAUSE_SECONDS),
        stop=tenacity.stop_when_event_set(stop),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=_log_pause,
        retry_error_callback=lambda _: None,
    )


def _log_pause(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.warning("cannot receive, trying again in %.1f s: %r", state.upcoming_sleep, error)
