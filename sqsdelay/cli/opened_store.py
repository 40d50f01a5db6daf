"""The store a command works on: its options, and the store they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sqsdelay.ports.stores import DelayedMessageStore

_HELP = "sqlite:///FILE, postgresql://… or dynamodb://TABLE."

StoreUrl = Annotated[str, typer.Option(envvar="SQSDELAY_STORE", help=_HELP)]
OptionalStoreUrl = Annotated[str | None, typer.Option(envvar="SQSDELAY_STORE", help=_HELP)]
Table = Annotated[
    str | None, typer.Option(help="The store's table, instead of <endpoint>.delayed.")
]
Schema = Annotated[
    str | None, typer.Option(help="PostgreSQL: the table's schema, instead of public.")
]


@contextmanager
def opened_store(
    endpoint: str, url: str, table: str | None, schema: str | None
) -> Iterator[DelayedMessageStore]:
    """The store of the endpoint of that name, closed at the end."""
    from sqsdelay.stores import open_store

    store = open_store(url, endpoint=endpoint, table=table, schema=schema)
    try:
        yield store
    finally:
        store.close()


def optional_store(
    endpoint: str, url: str | None, table: str | None, schema: str | None
) -> AbstractContextManager[DelayedMessageStore | None]:
    """The same where a store was named, else None.

    Raises:
        BadParameter: a table or schema, and no store.
    """
    if url is not None:
        return opened_store(endpoint, url, table, schema)
    if table is not None or schema is not None:
        raise typer.BadParameter("--table and --schema go with --store")
    return nullcontext()
