"""A private PostgreSQL for tests: installed if missing, on a free port, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.patience import PATIENCE_SECONDS
from tests.services import packages
from tests.services.network import closed_port

VARIABLE = "SQSDELAY_TEST_POSTGRES"
"""``postgresql://user@host:port/database`` of a server to use instead; the user may create databases."""

_LIBRARY = Path("/usr/lib/postgresql")


class PostgresServer:
    """A cluster of its own on a port: `start`, `stop` (``immediate`` is a crash), `kill`.

    Args:
        durable: True writes through to the disk, as a server in production does.
        address: what it listens on; any machine that reaches it may come in.
    """

    def __init__(self, folder: Path, port: int, *, durable: bool, address: str) -> None:
        self.port = port
        self._address = address
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
        if address != "127.0.0.1":
            with (folder / "data/pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        self._settings = "" if durable else "-c fsync=off "

    @property
    def conninfo(self) -> str:
        return f"postgresql://postgres@{self._address}:{self.port}/postgres"

    def start(self) -> None:
        settings = (
            f"{self._settings}-p {self.port} -c listen_addresses={self._address} "
            f"-c unix_socket_directories='' -c max_connections=500"
        )
        log = str(self._folder / "log")
        # -t: the default minute is not enough for a busy machine.
        self._run(
            str(self._pg_ctl), *self._data(), "-w", "-t", "110", "-l", log, "-o", settings, "start"
        )

    def stop(self, mode: str = "fast") -> None:
        self._run(str(self._pg_ctl), *self._data(), "-w", "-m", mode, "stop")

    def kill(self) -> None:
        """SIGKILL for the postmaster and all that work for it: nothing is shut down or flushed."""
        lock = self._folder / "data/postmaster.pid"
        first = lock.read_text().splitlines()[0]
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in (first, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        while any(map(_alive, (first, *children))):
            time.sleep(0.01)
        # A process that its parent does not ask after keeps its id, and the next server from starting.
        lock.unlink()

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


def _alive(pid: str) -> bool:
    """Whether a process runs; one that its parent has not asked after yet does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@contextmanager
def postgres_server(
    *, durable: bool = False, address: str = "127.0.0.1"
) -> Iterator[PostgresServer]:
    """A running private server, see `PostgresServer`; its data is deleted at the end."""
    with closed_port(address) as port, TemporaryDirectory(prefix="sqsdelay-postgres-") as folder:
        server = PostgresServer(Path(folder), port, durable=durable, address=address)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


@contextmanager
def database(conninfo: str) -> Iterator[str]:
    """A database of its own on that server, gone at the end."""
    name = f"own_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield f"{conninfo.rpartition('/')[0]}/{name}"
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            connection.execute(drop)


def _installed() -> Path:
    """The newest installed server's programs; Debian's package is installed where there is none."""

    def found() -> list[Path]:
        return sorted(_LIBRARY.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))

    packages.install("postgresql", unless=lambda: bool(found()), instead=f", or set {VARIABLE}")
    return found()[-1].parent


_TARGET = ("host", "port", "user", "password")
_PGBOUNCER = "/usr/sbin/pgbouncer"


@contextmanager
def pgbouncer(conninfo: str, *, mode: str, pool_size: int = 8) -> Iterator[str]:
    """A connection string through PgBouncer, to the same database.

    Args:
        mode: ``session`` or ``transaction``; all else is PgBouncer's default.
        pool_size: connections it opens to PostgreSQL.
    """
    server = conninfo_to_dict(conninfo)
    target = " ".join(f"{key}={server[key]}" for key in _TARGET if key in server)
    with closed_port() as port, TemporaryDirectory(prefix="sqsdelay-pgbouncer-") as folder:
        settings = Path(folder, "settings.ini")
        settings.write_text(
            f"[databases]\n* = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {pool_size}\n"
            f"max_client_conn = 500\n"
        )
        command = [_pgbouncer(), str(settings)]
        if os.geteuid() == 0:
            # It refuses to run as root.
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
            command = [*user, *command]
            shutil.chown(folder, "postgres", "postgres")
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        try:
            _wait_for(port, process)
            yield make_conninfo(conninfo, host="127.0.0.1", port=port)
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("PgBouncer did not start") from None
            time.sleep(0.05)


def _pgbouncer() -> str:
    """The program; Debian's package is installed where there is none."""
    packages.install("pgbouncer", unless=Path(_PGBOUNCER).exists)
    return _PGBOUNCER
