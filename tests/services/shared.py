"""A service that all processes of a run share: started for the first that asks, ended after the last."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.services.postgres import postgres_server
from tests.services.processes import ROOT
from tests.services.rabbitmq import RabbitNode


@contextmanager
def _rabbitmq(folder: Path) -> Iterator[tuple[str, str]]:
    node = RabbitNode(folder)
    try:
        node.start()
        yield node.url, node.management_url
    finally:
        node.stop()


@contextmanager
def _postgresql(_: Path) -> Iterator[tuple[str]]:
    with postgres_server() as server:
        yield (server.conninfo,)


_SERVICES: Final[dict[str, Callable[[Path], AbstractContextManager[tuple[str, ...]]]]] = {
    "rabbitmq": _rabbitmq,
    "postgresql": _postgresql,
}


@contextmanager
def shared(name: str, factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The service's URLs. It runs as long as anybody is in this block, in whatever process."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    told = folder / "told"
    with (folder / "users").open("w") as users, (folder / "asking").open("w") as asking:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(asking, fcntl.LOCK_EX)
        if not told.exists():
            # Nobody's child: whoever asked first may be gone before the last.
            keeper = ["setsid", "--fork", sys.executable, "-m", __name__, name, str(folder)]
            done = subprocess.run(keeper, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            if not done.stdout:
                raise RuntimeError(f"{name} did not start")
            told.write_text(done.stdout)
        fcntl.flock(asking, fcntl.LOCK_UN)
        yield told.read_text().splitlines()


def _keep(name: str, folder: Path) -> None:
    """Start the service, tell of it, and end it once nobody holds the lock: the system frees those of who
    was killed."""
    with (folder / "users").open("w") as users, _SERVICES[name](folder) as urls:
        print(*urls, sep="\n", flush=True)  # noqa: T201
        os.dup2(2, 1)  # Whoever asked reads to the end.
        fcntl.flock(users, fcntl.LOCK_EX)
        (folder / "told").unlink()


if __name__ == "__main__":
    _keep(sys.argv[1], Path(sys.argv[2]))
