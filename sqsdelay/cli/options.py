"""The options and arguments that several commands share, each written once, and what they open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sqsdelay.core.delay import checked_max_delay, delay_ms, parse_delay
from sqsdelay.errors import InvalidDelay
from sqsdelay.ledger import FileLedger
from sqsdelay.limits import DEFAULT_MAX_DELAY_SECONDS

if TYPE_CHECKING:
    from sqsdelay.ports.stores import DelayedMessageStore, ParkingPlace

EndpointName = Annotated[str, typer.Argument(help="The destination queue's name, URL or ARN.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print a JSON line per message.")]

# A message to send, or a file of them.
Delay = Annotated[
    str | None, typer.Option(help="Delay: seconds (90), 32m5s, 1d12h or ISO 8601 (PT32M5S).")
]
DueAt = Annotated[str | None, typer.Option(help="Due time with UTC offset: 2027-01-31T09:00:00Z.")]
Body = Annotated[str | None, typer.Option(help="The message body.")]
MessagesFile = Annotated[
    Path | None,
    typer.Option(
        help="JSON lines, one message each ('-' for stdin); "
        "--delay and --due-at apply to lines that have neither.",
        allow_dash=True,
        dir_okay=False,
    ),
]
Group = Annotated[
    str | None, typer.Option(help="Message group (with --body); required by FIFO queues.")
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        help="Message attribute (with --body): NAME=VALUE, or NAME:TYPE=VALUE with a TYPE of String, "
        "Number or Binary (base64). May be repeated.",
    ),
]

# Queues and workers.
Hop = Annotated[int, typer.Option(help="Delivery delay of the delay queue, seconds (1 to 900).")]
Wait = Annotated[int, typer.Option(help="Long poll, seconds (0 to 20).")]
Retries = Annotated[
    int, typer.Option(help="Retries of a refused message before it goes to the error queue.")
]
MaxDelay = Annotated[
    str,
    typer.Option(
        help="Longest delay allowed, e.g. 3650d: senders refuse a longer one, the delay consumer "
        "sends the message to the error queue."
    ),
]
DEFAULT_MAX_DELAY: Final = f"{DEFAULT_MAX_DELAY_SECONDS // 86_400}d"

# Stores and ledgers.
_STORE_HELP: Final = "sqlite:///FILE, postgresql://…, dynamodb://TABLE or s3://BUCKET/PREFIX."
PLACE_HELP: Final = (
    "sqlite:///FILE, postgresql://…, dynamodb://TABLE, s3://BUCKET/PREFIX or "
    "scheduler://GROUP?role=ARN."
)
StoreUrl = Annotated[str, typer.Option(envvar="SQSDELAY_STORE", help=_STORE_HELP)]
OptionalStoreUrl = Annotated[str | None, typer.Option(envvar="SQSDELAY_STORE", help=_STORE_HELP)]
PlaceUrl = Annotated[str, typer.Option("--store", envvar="SQSDELAY_STORE", help=PLACE_HELP)]
OptionalPlaceUrl = Annotated[
    str | None, typer.Option("--store", envvar="SQSDELAY_STORE", help=PLACE_HELP)
]
ParkAfter = Annotated[
    int, typer.Option(help="Park messages due later than this in the store, seconds.")
]
Table = Annotated[str | None, typer.Option(help="The store's table; default: <endpoint>.delayed.")]
Schema = Annotated[
    str | None, typer.Option(help="The table's schema in PostgreSQL; default: public.")
]
ReleasedTo = Annotated[
    str | None,
    typer.Option(
        "--to",
        envvar="SQSDELAY_DISPATCH_TO",
        help="The dispatcher's --to, if it releases to RabbitMQ: times are then taken from the "
        "database's clock (PostgreSQL) or this machine's (SQLite) instead of SQS's.",
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        dir_okay=False,
        help="Append what happens to each message to this file, as JSON lines.",
    ),
]

# Spark jobs.
Master = Annotated[
    str | None, typer.Option(help="Spark master; default: all cores of this machine.")
]


def max_delay_seconds(text: str) -> int:
    """The value of --max-delay in seconds.

    Raises:
        BadParameter: no length of time.
        ConfigurationError: out of range.
    """
    try:
        seconds = -(-delay_ms(parse_delay(text)) // 1000)
    except InvalidDelay as error:
        raise typer.BadParameter(str(error), param_hint="--max-delay") from error
    return checked_max_delay(seconds)


@contextmanager
def opened_store(
    endpoint: str, url: str, table: str | None, schema: str | None, *, create: bool = False
) -> Iterator[DelayedMessageStore]:
    """The store of the endpoint of that name, closed at the end.

    Raises:
        StoreMissing: a SQLite file that does not exist, unless ``create``: its name may be mistyped.
    """
    from sqsdelay.stores import open_store

    store = open_store(url, endpoint=endpoint, table=table, schema=schema, create=create)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened_place(
    endpoint: str, url: str, table: str | None, schema: str | None, *, create: bool = False
) -> Iterator[ParkingPlace]:
    """Where the messages of the endpoint of that name wait, closed at the end.

    Raises:
        StoreMissing: a SQLite file that does not exist, unless ``create``: its name may be mistyped.
    """
    from sqsdelay.stores import open_place

    place = open_place(url, endpoint=endpoint, table=table, schema=schema, create=create)
    with closing(place):
        yield place


def optional_place(
    endpoint: str, url: str | None, table: str | None, schema: str | None
) -> AbstractContextManager[ParkingPlace | None]:
    """The same if a store was named, else None.

    Raises:
        BadParameter: a table or schema without a store.
    """
    if url is not None:
        return opened_place(endpoint, url, table, schema)
    if table is not None or schema is not None:
        raise typer.BadParameter("--table and --schema require --store")
    return nullcontext()


def opened_ledger(file: Path | None) -> FileLedger | None:
    """The ledger in that file, None without one.

    Raises:
        ConfigurationError: it cannot be written.
    """
    return None if file is None else FileLedger(file)
