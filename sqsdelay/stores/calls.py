"""Calls on an AWS service: a client and threads that belong to this process, and many calls at a time; and
what a store in such a service says to those who ask for more than it can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Final, Literal, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.errors import ConfigurationError, StoreError
from sqsdelay.limits import ANSWER_SECONDS, CALL_ATTEMPTS, CONNECT_SECONDS
from sqsdelay.ports.forks import in_each_child
from sqsdelay.ports.stores import TransactionMode

CONCURRENCY: Final = 16
"""Calls in flight."""

T = TypeVar("T")
R = TypeVar("R")


class Calls:
    """What a store on an AWS service calls it with.

    Args:
        service: its name in boto3.
        client: a boto3 client; None to make one of the default session, and to close it with this. A service
            that does not answer is given up within seconds.
        connect_seconds, answer_seconds: the longest that one of its attempts waits.

    Raises:
        ConfigurationError: no region, an unknown profile, or another setting boto3 cannot use.
    """

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
        """``do`` for each item, several at a time; answers in order. Never from within ``do``.

        After an error no more are begun, and it is raised when all that have begun are done.
        """
        given = list(items)
        if len(given) < 2:
            return [do(item) for item in given]
        futures = [self._threads.submit(do, item) for item in given]
        wait(futures, return_when=FIRST_EXCEPTION)
        wait([future for future in futures if not future.cancel()])
        return [future.result() for future in futures]

    def answered(self, call: Callable[..., R], **arguments: Any) -> R:
        """The service's answer.

        Raises:
            StoreError: as `_refused` has it.
        """
        try:
            return call(**arguments)
        except (ClientError, BotoCoreError) as error:
            response = error.response if isinstance(error, ClientError) else {}
            raise self._refused(error, response) from error

    def _refused(self, error: ClientError | BotoCoreError, response: Any) -> StoreError:
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


def check_no_transaction(store: str, mode: TransactionMode | None, transaction: Any = None) -> None:
    """Refuse what only a database can do.

    Args:
        store: what the store is, e.g. "an S3 store".
        mode: what a dispatcher asks for; None of a sender.
        transaction: what a sender gives.

    Raises:
        ConfigurationError
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
