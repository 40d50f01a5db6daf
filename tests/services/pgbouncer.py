"""A private PgBouncer for tests: installed if missing, on a free port, gone afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sqsdelay.testing.local_aws import free_port
from tests.services import debian

_TARGET = ("host", "port", "user", "password")
_PROGRAM = "/usr/sbin/pgbouncer"


@contextmanager
def pgbouncer(conninfo: str, *, mode: str, pool_size: int = 8) -> Iterator[str]:
    """A connection string through PgBouncer, to the same database.

    Args:
        mode: ``session`` or ``transaction``; all else is PgBouncer's default.
        pool_size: connections it opens to PostgreSQL.
    """
    server = conninfo_to_dict(conninfo)
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="sqsdelay-pgbouncer-"))
    target = " ".join(f"{key}={server[key]}" for key in _TARGET if key in server)
    (folder / "settings.ini").write_text(
        f"[databases]\n* = {target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {pool_size}\n"
        f"max_client_conn = 500\n"
    )
    command = [_installed(), str(folder / "settings.ini")]
    if os.geteuid() == 0:
        # It refuses to run as root.
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]
        shutil.chown(folder, "postgres", "postgres")
    try:
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        try:
            _wait_for(port, process)
            yield make_conninfo(conninfo, host="127.0.0.1", port=port)
        finally:
            process.terminate()
            process.wait(30)
    finally:
        shutil.rmtree(folder)


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


def _installed() -> str:
    """The program; Debian's package is installed where there is none."""
    debian.install("pgbouncer", unless=Path(_PROGRAM).exists)
    return _PROGRAM
