"""What the use cases need from outside; and what an adapter that holds connections or threads does in a fork.

A forked process has its parent's sockets but not its threads: what both write to one socket is mixed up,
and what waits for a thread waits for ever. Servers that load an application before they fork (gunicorn
--preload, Celery's prefork pool, uWSGI) do that to whatever has sent a message by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_renewals: Final[WeakKeyDictionary[Any, Callable[[Any], object]]] = WeakKeyDictionary()


def in_each_child(owner: T, renew: Callable[[T], object]) -> None:
    """Call ``renew(owner)`` in every process forked from now on, before anything else runs there.
    ``owner`` is kept alive by others, and forgotten with them. ``renew`` must neither send on an inherited
    connection nor wait for a lock: a thread that the child does not have may hold it. It may not keep
    ``owner`` alive either."""
    _renewals[owner] = renew


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
