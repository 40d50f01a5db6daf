"""All that the pages and the API stand on: the endpoints, the ledger, the broker, the jobs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from sqsdelay.console import failures, messages
from sqsdelay.console.jobs import Job, Jobs, Outcome
from sqsdelay.console.ledger_file import LedgerFile
from sqsdelay.console.overview import Broker, Overview
from sqsdelay.console.rendering import text_of
from sqsdelay.console.schemas import (
    ChangeRequest,
    ErrorsRequest,
    JobView,
    MoveRequest,
    OutcomeView,
    RetryRequest,
    SendRequest,
)
from sqsdelay.console.sends import Sends
from sqsdelay.console.settings import Access, ConsoleSettings
from sqsdelay.console.source import Source
from sqsdelay.core.delay import due_time, parse_delay, parse_due_at
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import InvalidDelay, InvalidEndpoint

SOON_SECONDS: Final = 1.5
"""How long an answer waits for a change to end, so that most need no second look."""


class Services:
    """Everything a console does, without the web.

    Args:
        settings: what it shows.
        access: who may use it.

    Raises:
        InvalidEndpoint, ConfigurationError, MissingExtra
    """

    def __init__(self, settings: ConsoleSettings, access: Access) -> None:
        endpoints = [Endpoint.parse(each) for each in settings.endpoints]
        self.settings = settings
        self.access = access
        self.sources = {each.name: Source(each, settings) for each in endpoints}
        self.ledger = None if settings.ledger is None else LedgerFile(settings.ledger)
        self.broker = (
            None
            if settings.rabbitmq is None
            else Broker(settings.rabbitmq, settings.prefix, list(self.sources))
        )
        self.overview = Overview(
            list(self.sources.values()), ledger=self.ledger, broker=self.broker
        )
        self.sends = Sends(self.broker)
        self.jobs = Jobs()

    def source(self, endpoint: str) -> Source:
        """The endpoint of that name.

        Raises:
            InvalidEndpoint: none of this console's.
        """
        found = self.sources.get(endpoint)
        if found is None:
            known = ", ".join(self.sources)
            raise InvalidEndpoint(
                f"endpoint {endpoint!r} is not shown here; those shown are {known}"
            )
        return found

    def cancel(self, endpoint: str, request: ChangeRequest, who: str) -> Job:
        """Cancel parked messages."""
        source = self.source(endpoint)
        work = messages.cancelled(source, request.messages)
        return self._start(source, work, "cancel", who, len(request.messages), request)

    def release(self, endpoint: str, request: ChangeRequest, who: str) -> Job:
        """Release parked messages now."""
        source = self.source(endpoint)
        work = messages.released(source, request.messages)
        return self._start(source, work, "release now", who, len(request.messages), request)

    def move(self, endpoint: str, request: MoveRequest, who: str) -> Job:
        """Give parked messages another due time.

        Raises:
            InvalidDelay
        """
        source = self.source(endpoint)
        due_ms = self.new_due_ms(source, request.delay, request.due_at)
        work = messages.moved(source, request.messages, due_ms)
        return self._start(source, work, "reschedule", who, len(request.messages), request)

    def new_due_ms(self, source: Source, delay: str | None, due_at: str | None) -> int:
        """The due time that a delay from now or a due time names, epoch milliseconds.

        Raises:
            InvalidDelay: both or none of them, or one that is none.
        """
        if bool(delay) == bool(due_at):
            raise InvalidDelay("give either a delay (1d12h) or a due time (2027-01-31T09:00:00Z)")
        due = due_time(
            parse_delay(delay) if delay else None, parse_due_at(due_at) if due_at else None
        )
        return due.due_ms(0 if due.absolute else source.latest_ms())

    def retry(self, endpoint: str, request: RetryRequest, who: str) -> Job:
        """Send messages of the error queue on."""
        source = self.source(endpoint)
        work = failures.retried(source, request, undated_now=request.undated_now)
        return self._start(source, work, "retry", who, _total(source, request), request)

    def discard(self, endpoint: str, request: ErrorsRequest, who: str) -> Job:
        """Delete messages of the error queue."""
        source = self.source(endpoint)
        work = failures.discarded(source, request)
        return self._start(source, work, "discard", who, _total(source, request), request)

    def send(self, endpoint: str, request: SendRequest, who: str) -> Job:
        """Send a message."""
        source = self.source(endpoint)
        work = self.sends.send(source, request)
        return self._start(source, work, "send", who, 1, request)

    def _start(
        self,
        source: Source,
        work: Callable[[], Generator[Outcome]],
        what: str,
        who: str,
        total: int | None,
        request: ChangeRequest | ErrorsRequest | SendRequest,
    ) -> Job:
        job = self.jobs.start(
            work,
            what=what,
            endpoint=source.name,
            who=who,
            total=total,
            key=request.key,
            request=request,
            at_end=source.changed,
        )
        job.finished.wait(SOON_SECONDS)
        return job

    def close(self) -> None:
        """Stop what is under way, and let go of connections."""
        self.jobs.stop()
        for source in self.sources.values():
            source.close()


def _total(source: Source, request: ErrorsRequest) -> int | None:
    """About how many messages a change of an error queue is for."""
    if request.keys is not None:
        return len(request.keys)
    if request.reason is None:
        status = source.queues_sample.get().value
        return None if status is None else status.errors
    known = source.errors_sample.get().value or ()
    return sum(failures.kind_of(each.reason) == request.reason for each in known)


def job_view(job: Job) -> JobView:
    """A job for people and programs."""
    outcomes = list(job.outcomes)
    done = job.done
    return JobView(
        key=job.key,
        what=job.what,
        endpoint=job.endpoint,
        who=job.who,
        total=job.total,
        done=done,
        counts={str(result): count for result, count in job.counts.items()},
        outcomes=[
            OutcomeView(
                id=text_of(each.message_id), result=each.result.value, text=text_of(each.text)
            )
            for each in outcomes
        ],
        outcomes_left_out=max(0, done - len(outcomes)),
        finished=job.finished.is_set(),
        error=job.error,
    )
