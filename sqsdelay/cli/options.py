"""The options and arguments that several commands share, what they open, and what stands before a command."""

from __future__ import annotations

import logging
import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from sqsdelay import errors
from sqsdelay.cli.console import OneLine, tell
from sqsdelay.core.delay import SystemClock, checked_max_delay, delay_ms, due_at_ms, due_time
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import DEFAULT_MAX_DELAY_SECONDS
from sqsdelay.core.readable import parse_delay, parse_due_at
from sqsdelay.ledger import FileLedger
from sqsdelay.operating.status import deployed_store, latest_of_sqs
from sqsdelay.parking.parking import check
from sqsdelay.stores import open_place, open_store

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

    from sqsdelay.ports.stores import DelayedMessageStore, ParkingPlace
    from sqsdelay.sqs.queues import SqsQueues


logger = logging.getLogger(__name__)
_Opened = TypeVar("_Opened", bound="ParkingPlace")
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""They would win over a profile of the environment; the AWS CLI's --profile wins over them."""
_TOLD: Final = {
    "sqsdelay": logging.DEBUG,
    "botocore.credentials": logging.INFO,
    "botocore.retries": logging.DEBUG,
    "urllib3.connectionpool": logging.DEBUG,
    "pika": logging.INFO,
}
"""What --verbose shows: where credentials came from, each request and its status. No body, no secret."""


class Commands(TyperGroup):
    """Commands that say where an option or a command belongs that is typed in another place."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """In a pipe; a terminal has these groups in boxes."""
        groups = defaultdict[str, list[tuple[str, str]]](list)
        room = formatter.width - 6 - max(map(len, self.commands))
        for name, each in self.commands.items():
            panel = getattr(each, "rich_help_panel", None) or "Commands"
            groups[panel].append((name, each.get_short_help_str(room)))
        for panel, rows in groups.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        with _placing(ctx, self, f"before the command: {ctx.command_path} {{}} …"):
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        found: Any = self
        path = ctx.command_path
        for word in args:
            if word in getattr(found, "commands", {}):
                found, path = found.commands[word], f"{path} {word}"
        with _placing(ctx, found, f"behind the command: {path} … {{}}"):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word, rest = args[0], args[1:]
        groups = self.commands.items()
        whole = [f"{name} {word}" for name, each in groups if word in getattr(each, "commands", {})]
        whole = whole or [f"{name} {word}" for name in rest if name in self.commands][:1]
        if word not in self.commands and whole:
            ctx.fail(f"no command {word!r}; use {ctx.command_path} {' or '.join(whole)}")
        return super().resolve_command(ctx, args)


@contextmanager
def _placing(ctx: Any, command: Any, there: str) -> Iterator[None]:
    """Say of an option that was not known where it stands, if it is this command's."""
    try:
        yield
    except Exception as error:
        # By its name: typer has exceptions of its own, or click's.
        option = getattr(error, "option_name", None)
        takes = any(option in each.opts for each in command.params)
        if type(error).__name__ == "NoSuchOption" and takes:
            ctx.fail(f"{option} stands {there.format(option)}")
        raise


@contextmanager
def environment(profile: str | None, region: str | None) -> Iterator[None]:
    """The environment boto3 and child processes read, as the options have it. Of a queue of SQS's that is
    missing an error says where that was looked for."""
    before = dict(os.environ)
    if profile is not None:
        for key in _KEYS:
            os.environ.pop(key, None)
        os.environ["AWS_PROFILE"] = profile
    if region is not None:
        os.environ["AWS_DEFAULT_REGION"] = os.environ["AWS_REGION"] = region
    try:
        yield
    except (errors.QueueMissing, errors.StoreMissing) as error:
        from botocore.exceptions import ClientError

        from sqsdelay.sqs.client import default_client

        given = (("--profile", profile), ("--region", region))
        words = [word for option, value in given if value is not None for word in (option, value)]
        text, ours = str(error), shlex.join(["sqsdelay", *words])
        for group in ("endpoint", "store"):
            text = text.replace(f"sqsdelay {group}", f"{ours} {group}")
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ClientError):
            cause = cause.__cause__
        if isinstance(error, errors.QueueMissing) and cause is not None:
            at = default_client(connections=1).meta
            text += f". It was looked for in {at.region_name} at {at.endpoint_url}; if it is elsewhere, "
            text += "give --region or --profile, or set AWS_ENDPOINT_URL"
        raise type(error)(text) from error
    finally:
        if profile is not None or region is not None:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def logging_to_stderr(wanted: bool) -> Iterator[None]:
    """Log to stderr what `_TOLD` names, and the cause of an error."""
    if not wanted:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(name)s %(levelname)s %(message)s"))
    with ExitStack() as restored:
        logging.getLogger().addHandler(handler)
        restored.callback(logging.getLogger().removeHandler, handler)
        for name, level in _TOLD.items():
            restored.callback(logging.getLogger(name).setLevel, logging.getLogger(name).level)
            logging.getLogger(name).setLevel(level)
        try:
            yield
        except errors.SqsDelayError as error:
            if error.__cause__ is not None:
                cause = error.__cause__
                logger.debug("the cause", exc_info=(type(cause), cause, cause.__traceback__))
            raise


def whole_seconds(delay: str) -> int:
    """Seconds of a delay as people write it, rounded up."""
    return -(-delay_ms(parse_delay(delay)) // 1000)


def seconds_of(given: str) -> int:
    """The longest delay that an option gives."""
    try:
        seconds = whole_seconds(given)
    except errors.InvalidDelay as error:
        raise typer.BadParameter(str(error)) from error
    return checked_max_delay(seconds)


def time_option(told: str) -> Any:
    """An option for a time, with its help; the command gets epoch milliseconds."""

    def time(given: str) -> int:
        try:
            return due_at_ms(parse_due_at(given))
        except errors.InvalidDelay as error:
            raise typer.BadParameter(str(error)) from error

    return Option(parser=time, metavar="<time>", help=told)


EndpointName = Annotated[str, Argument(help="The destination queue's name, URL or ARN.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, Option("--json", help="Print a JSON line per message.")]
# A message to send, or a file of them.
DelayOption = Annotated[str | None, Option(help="Delay: seconds (90), 32m5s, 1d12h or PT32M5S.")]
DueAt = Annotated[str | None, Option(help="Due time with UTC offset: 2027-01-31T09:00:00Z.")]
Body = Annotated[str | None, Option(help="The message body.")]
MessagesFile = Annotated[
    Path | None,
    Option(help="JSON lines, one message each ('-': stdin).", allow_dash=True, dir_okay=False),
]
Group = Annotated[str | None, Option(help="Message group (with --body); required by FIFO queues.")]
Attributes = Annotated[
    list[str] | None,
    Option(
        "--attribute",
        help="Message attribute (with --body): NAME=VALUE, or NAME:TYPE=VALUE with a TYPE of String, "
        "Number or Binary (base64). May be repeated.",
    ),
]
# Queues and workers.
Hop = Annotated[int, Option(help="Delivery delay of the delay queue, seconds (1 to 900).")]
Wait = Annotated[int, Option(help="Long poll, seconds (0 to 20).")]
Retries = Annotated[int, Option(help="Retries of a refused message before it is rejected.")]
MaxDelay = Annotated[
    int,
    Option(
        parser=seconds_of,
        metavar="<delay>",
        help="Longest delay: senders refuse more, workers send it to the error queue.",
    ),
]
DEFAULT_MAX_DELAY: Final[Any] = f"{DEFAULT_MAX_DELAY_SECONDS // 86_400}d"
# Stores and ledgers.
_STORE_HELP: Final = (
    "sqlite:///FILE or postgresql://… (?table=NAME if not <endpoint>.delayed), dynamodb://TABLE or "
    "s3://BUCKET/PREFIX."
)
PLACES: Final = (
    "sqlite:///FILE, postgresql://…, dynamodb://TABLE, s3://BUCKET/PREFIX or "
    "scheduler://GROUP?role=ARN."
)
StoreUrl = Annotated[str, Option(envvar="SQSDELAY_STORE", help=_STORE_HELP)]
OptionalStoreUrl = Annotated[str | None, Option(envvar="SQSDELAY_STORE", help=_STORE_HELP)]
PlaceUrl = Annotated[str, Option("--store", envvar="SQSDELAY_STORE", help=PLACES)]
OptionalPlaceUrl = Annotated[str | None, Option("--store", envvar="SQSDELAY_STORE", help=PLACES)]
ParkAfter = Annotated[int, Option(help="Park messages due later than this, seconds.")]
ReleasedTo = Annotated[
    str | None,
    Option(
        "--to",
        envvar="SQSDELAY_DISPATCH_TO",
        help="The dispatcher's --to, if it releases to RabbitMQ: times are then taken from the "
        "database's clock (PostgreSQL) or this machine's (SQLite) instead of SQS's.",
    ),
]
LedgerFile = Annotated[
    Path | None,
    Option("--ledger", dir_okay=False, help="Append events to this file, as JSON lines."),
]
PricesFile = Annotated[
    Path | None, Option("--prices", help="Your own price file.", exists=True, dir_okay=False)
]


def new_due_ms(delay: str | None, due_at: str | None, *, now_ms: Callable[[], int]) -> int:
    """The due time that --delay or --due-at names, epoch milliseconds; a delay counts from ``now_ms``."""
    if (delay is None) == (due_at is None):
        raise typer.BadParameter("give either --delay or --due-at")
    due = due_time(**times(delay, due_at))
    return due.due_ms(0 if due.absolute else now_ms())


def times(delay: str | None, due_at: str | None) -> dict[str, Any]:
    """The same two as a sender takes them."""
    return {
        "delay": None if delay is None else parse_delay(delay),
        "due_at": None if due_at is None else parse_due_at(due_at),
    }


class Target:
    """The endpoint that a command is for, its store's URL, and the clock of those who release its messages:
    ``to`` RabbitMQ, or to SQS. ``wait_seconds`` is of the long polls that its client is for."""

    def __init__(
        self, endpoint: str, store: str | None = None, to: str | None = None, wait_seconds: int = 0
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint)
        self.name, self.store, self.to = self.endpoint.name, store, to
        self._sqs_tells_time, self._wait_seconds = to is None, wait_seconds

    @cached_property
    def client(self) -> SQSClient:
        """SQS, as the environment has it."""
        from sqsdelay.sqs.client import default_client

        return default_client(connections=1, wait_seconds=self._wait_seconds)

    @cached_property
    def queues(self) -> SqsQueues:
        """The same as a queue service."""
        from sqsdelay.sqs.queues import SqsQueues

        return SqsQueues(self.client)

    def opened_store(self, *, create: bool = False) -> AbstractContextManager[DelayedMessageStore]:
        """The store, closed at the end. Unless ``create``, a SQLite file has to be there."""
        return self._opened(open_store, create=create)

    def opened_place(self, *, create: bool = False) -> AbstractContextManager[ParkingPlace]:
        """The same, or a place that needs no dispatcher."""
        return self._opened(open_place, create=create)

    @contextmanager
    def _opened(self, opening: Callable[..., _Opened], *, create: bool) -> Iterator[_Opened]:
        """The remedy of what is missing names the store as it was given, but for a URL with a password."""
        url = self.store or ""
        try:
            with closing(opening(url, endpoint=self.name, create=create)) as opened:
                yield opened
        except errors.StoreMissing as error:
            shown = "postgresql://…" if url.startswith("postgres") else shlex.quote(url)
            remedy = f"store create {self.name} --store {shown}"
            raise errors.StoreMissing(str(error).replace("store create", remedy)) from error

    def optional_place(self) -> AbstractContextManager[ParkingPlace | None]:
        """The same if a store was named, else None."""
        return nullcontext() if self.store is None else self.opened_place()

    @contextmanager
    def known_place(self) -> Iterator[ParkingPlace | None]:
        """The store that was named, or else the one that a deployment makes, which is ``store`` then; None
        where that is not there or may not be read: one that was let go of may hold messages still. Another
        version's is refused, named or not."""
        named = self.store is not None
        self.store = self.store or deployed_store(self.endpoint)
        with ExitStack() as opened:
            place = None
            try:
                there = opened.enter_context(self.opened_place())
                if named:
                    check(there)
                else:
                    there.pending_count()
                place = there
            except errors.StoreError as error:
                if named or isinstance(error, errors.SchemaMismatch):
                    raise
            yield place

    def delay_counts_from(self, place: ParkingPlace) -> int:
        """The most that the clock may read now by which messages are released, epoch milliseconds."""
        if self._sqs_tells_time:
            try:
                return latest_of_sqs(self.queues, self.endpoint.queue)
            except (errors.QueueMissing, errors.QueueUnavailable) as error:
                raise errors.QueueUnavailable(
                    f"SQS did not give its time, from which the delay counts: {error}; give "
                    "--due-at, or --to if the store is released to RabbitMQ"
                ) from error
            except errors.ConfigurationError as error:
                if str(self.store).startswith(("dynamodb:", "scheduler:")):
                    raise
                self._sqs_tells_time, why = False, "because SQS cannot be reached"
                tell(f"the delay counts from the store's clock, {why}: {error}")
        from sqsdelay.stores.shared import StoreClock

        return StoreClock(place).latest_ms()

    def amended_until(self, place: ParkingPlace) -> int:
        """The latest that clock may read: a cancellation or a new due time applies to what was sent by then.
        Without SQS it is this machine's clock, which is enough for messages in the store."""
        if self.to is not None:
            return self.delay_counts_from(place)
        try:
            return latest_of_sqs(self.queues, self.endpoint.queue)
        except errors.SqsDelayError as error:
            tell(f"using this machine's clock, because SQS did not give its time: {error}")
            return SystemClock().now_ms()


def opened_ledger(file: Path | None) -> FileLedger | None:
    return None if file is None else FileLedger(file)
