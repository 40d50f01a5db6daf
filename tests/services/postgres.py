"""A private PostgreSQL for tests: installed if missing, on a free port, gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqsdelay.testing.local_aws import free_port
from tests.patience import PATIENCE_SECONDS

VARIABLE = "SQSDELAY_TEST_POSTGRES"
"""``postgresql://user@host:port/database`` of a server to use instead; the user may create databases."""

_LIBRARY = Path("/usr/lib/postgresql")
_PORTS_TRIED: Final = 5


class PostgresServer:
    """A cluster of its own: `start`, `stop` (``immediate`` is a crash), `conninfo` once it has started."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.port: int | None = None
        self._folder = folder
        bin_folder = _installed()  # first: the package makes the user
        self._as_postgres: list[str] = []
        if os.geteuid() == 0:
            # The server refuses to run as root.
            self._as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
            shutil.chown(folder, "postgres", "postgres")
        self._initdb, self._pg_ctl = bin_folder / "initdb", bin_folder / "pg_ctl"
        data = str(folder / "data")
        options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"]
        self._run(str(self._initdb), "-D", data, *options)
        self._settings = "" if durable else "-c fsync=off "

    @property
    def conninfo(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start (again, on the same port); where another program was quicker at first, on another."""
        if self.port is not None:
            self._start()
            return
        for left in reversed(range(_PORTS_TRIED)):
            self.port = free_port()
            try:
                self._start()
            except RuntimeError:
                if not left or "could not bind" not in self._log.read_text():
                    raise
            else:
                return

    def _start(self) -> None:
        settings = (
            f"{self._settings}-p {self.port} -c listen_addresses=127.0.0.1 "
            f"-c unix_socket_directories='' -c max_connections=200"
        )
        log = str(self._log)
        # -t: the default minute is not enough for a busy machine.
        self._run(
            str(self._pg_ctl), *self._data(), "-w", "-t", "110", "-l", log, "-o", settings, "start"
        )

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def stop(self, mode: str = "fast") -> None:
        self._run(str(self._pg_ctl), *self._data(), "-w", "-m", mode, "stop")

    def _data(self) -> list[str]:
        return ["-D", str(self._folder / "data")]

    def _run(self, *command: str) -> None:
        # pg_ctl's server would hold a pipe open, so its output goes to a file.
        with (self._folder / "commands").open("w+b") as output:
            done = subprocess.run(
                [*self._as_postgres, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                check=False,
                timeout=PATIENCE_SECONDS,
            )
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{command[0]} failed: {output.read().decode()}")


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """A running private server; its data is deleted at the end.

    Args:
        durable: True writes through to the disk, as a server in production does.
    """
    folder = Path(tempfile.mkdtemp(prefix="sqsdelay-postgres-"))
    try:
        server = PostgresServer(folder, durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder)


@contextmanager
def postgres_conninfo() -> Iterator[str]:
    """A database to test in: the one of ``SQSDELAY_TEST_POSTGRES``, else a private server's."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    with postgres_server() as server:
        yield server.conninfo


def _installed() -> Path:
    """The newest installed server's programs; Debian's package is installed where there is none."""
    found = sorted(_LIBRARY.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        if os.geteuid() != 0:
            raise RuntimeError(
                f"no PostgreSQL server: apt-get install postgresql, or set {VARIABLE}"
            )
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
            subprocess.run(["apt-get", "-qq", *command], env=environment, check=True, timeout=280)
        return _installed()
    return found[-1].parent
