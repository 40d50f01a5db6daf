"""What stores on AWS have in common: calls, many at a time, the service's time by the dates of its answers,
refusals of what only a database can do, and amendments where each look costs a request."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from sqsdelay.core.delay import Clock
from sqsdelay.core.limits import ANSWER_SECONDS, CALL_ATTEMPTS, CONNECT_SECONDS
from sqsdelay.core.readable import one_line
from sqsdelay.core.stored_message import Amendment, latest_amendments
from sqsdelay.errors import ConfigurationError, StoreError
from sqsdelay.ports import in_each_child
from sqsdelay.ports.stores import TransactionMode

CONCURRENCY: Final = 16
"""Calls in flight."""

T = TypeVar("T")
R = TypeVar("R")


class Calls:
    """What a store on an AWS service calls it with. Raises ConfigurationError: no region, an unknown profile,
    or another setting boto3 cannot use. ``service``: its name in boto3. ``client``: a boto3 client; None to
    make one of the default session, and to close it with this. A service that does not answer is given up
    within seconds. ``connect_seconds``, ``answer_seconds``: the longest that one of its attempts waits."""

    def __init__(
        self,
        service: str,
        client: Any,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._owned = client is None
        if client is None:
            client = _client(service, connect_seconds, answer_seconds)
        self.client = client
        self._threads = _threads()
        in_each_child(self, lambda calls: calls._begin_anew())

    def _begin_anew(self) -> None:
        self._threads = _threads()
        if self._owned:
            self.client.close()

    def each(self, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """``do`` for each item, several at a time; answers in order. Never from within ``do``. After an error
        no more are begun, and it is raised when all that have begun are done."""
        given = list(items)
        if len(given) < 2:
            return [do(item) for item in given]
        futures = [self._threads.submit(do, item) for item in given]
        wait(futures, return_when=FIRST_EXCEPTION)
        wait([future for future in futures if not future.cancel()])
        return [future.result() for future in futures]

    def answered(self, call: Callable[..., R], **arguments: Any) -> R:
        """The service's answer. Raises StoreError: as `_refused` has it."""
        try:
            return call(**arguments)
        except (ClientError, BotoCoreError, HTTPError) as error:
            # botocore lets urllib3's own through where the body of a refused read breaks off.
            response = error.response if isinstance(error, ClientError) else {}
            raise self._refused(error, response) from error

    def _refused(self, error: Exception, response: Any) -> StoreError:
        """botocore's error in the store's terms; the response is empty where there was none."""
        raise NotImplementedError

    def close(self) -> None:
        self._threads.shutdown()
        if self._owned:
            self.client.close()


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="store")


def _client(service: str, connect_seconds: float, answer_seconds: float) -> Any:
    # Adaptive: one call for each message is slowed down where the service throttles.
    mode: Literal["standard", "adaptive"] = "adaptive" if service == "scheduler" else "standard"
    config = Config(
        connect_timeout=connect_seconds,
        read_timeout=answer_seconds,
        retries={"mode": mode, "total_max_attempts": CALL_ATTEMPTS},
        max_pool_connections=CONCURRENCY,
        tcp_keepalive=True,
    )
    try:
        return boto3.client(service, config=config)  # type: ignore[call-overload]
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"{str(error).rstrip('.')}; set AWS_DEFAULT_REGION and AWS_PROFILE, or give sqsdelay --region "
            "and --profile before its command"
        ) from error


_APART_MS: Final = 3_000
"""An answer's date may lie so far behind what is known: it is cut off, and was some time on its way.
More, and the machine's monotonic clock has run away."""


def answered_ms(response: Mapping[str, Any]) -> int | None:
    """The date of a service's answer, epoch milliseconds, cut off to the second; None without one."""
    date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if date is None else int(parsedate_to_datetime(date).timestamp()) * 1000


class ServiceClock:
    """The service's now, epoch milliseconds. ``given``: tests only: this clock instead of the dates of
    answers."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds since some time; another one in virtual time."""

    def __init__(self, given: Clock | None) -> None:
        self._given = given
        self._best: tuple[int, float] | None = None

    def read(self, response: Mapping[str, Any]) -> int:
        """When an answer was written, epoch milliseconds; cut off to the second where it is a date
        (RFC 9110, 5.6.7)."""
        if self._given is not None:
            return self._given.now_ms()
        read_ms = answered_ms(response)
        if read_ms is None:
            return time.time_ns() // 1_000_000
        best = self._best
        if best is None or not 0 < self._now(best) - read_ms <= _APART_MS:
            self._best = (read_ms, self.monotonic())
        return read_ms

    def now_ms(self) -> int:
        """About the service's now; the machine's own clock until it has answered."""
        if self._given is not None:
            return self._given.now_ms()
        best = self._best
        return time.time_ns() // 1_000_000 if best is None else self._now(best)

    def _now(self, best: tuple[int, float]) -> int:
        read_ms, at = best
        return read_ms + int((self.monotonic() - at) * 1000)


def check_no_transaction(store: str, mode: TransactionMode | None, transaction: Any = None) -> None:
    """Refuse what only a database can do. Raises ConfigurationError. ``store``: what the store is, e.g. "an
    S3 store". ``mode``: what a dispatcher asks for; None of a sender. ``transaction``: what a sender gives.
    """
    if transaction is not None:
        raise ConfigurationError(
            f"{store} takes no transaction=; leave it out, or use SQLite or PostgreSQL"
        )
    if mode not in (None, TransactionMode.AT_LEAST_ONCE):
        raise ConfigurationError(
            f"{store} cannot give {mode}: no transaction of its service includes your own writes; use "
            f"{TransactionMode.AT_LEAST_ONCE}, or a SQLite or PostgreSQL store"
        )


TOLD_AHEAD_MS: Final = 86_400_000
"""So much longer than the amendment at hand there are said to be some: a write a day."""


class Amendments(ABC):
    """A store's amendments, which expire. One record more tells until when there may be any: it is written
    before the first of them, and outlives them all. So where nobody cancels or moves messages, a batch of
    copies costs one read instead of one each. Raises StoreError: one of them is malformed, or of another
    version."""

    _now_ms: Callable[[], int]
    """What they expire by, epoch milliseconds."""
    _some_until_ms = 0

    def amend(self, amendments: Sequence[Amendment]) -> None:
        last = latest_amendments(amendments)
        if not last:
            return
        with _readable(last):
            self._tell(max(each.until_ms for each in last.values()))
            self._write(list(last.values()))

    def amendments(self, message_ids: Sequence[str]) -> dict[str, Amendment]:
        with _readable(message_ids):
            if message_ids and self._now_ms() >= self._some_until_ms:
                # That there are none is asked for each time.
                self._some_until_ms = self._asked()
            if not message_ids or self._now_ms() >= self._some_until_ms:
                return {}
            return {each.message_id: each for each in self._valid(self._found(message_ids))}

    def _valid(self, amendments: Iterable[Amendment]) -> list[Amendment]:
        """Those that have not expired."""
        return [each for each in amendments if each.until_ms > self._now_ms()]

    @abstractmethod
    def _tell(self, until_ms: int) -> None:
        """Say that there are some until then, and `TOLD_AHEAD_MS` longer, unless it is said for as long."""

    @abstractmethod
    def _asked(self) -> int:
        """Until when there may be some, epoch milliseconds; 0 where nothing is said."""

    @abstractmethod
    def _write(self, amendments: Sequence[Amendment]) -> None:
        """Write them; one that moves what was cancelled before keeps when that was."""

    @abstractmethod
    def _found(self, message_ids: Sequence[str]) -> Iterable[Amendment]:
        """Those of these messages, expired ones too."""


@contextmanager
def _readable(message_ids: Iterable[str]) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"amendments of {one_line(', '.join(message_ids))} are not as this sqsdelay writes them: "
            f"{error!r}; use the same sqsdelay everywhere, or mend what was written by hand"
        ) from error
