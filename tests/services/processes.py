"""The real command line, in processes of its own or in this one."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import BytesIO, TextIOWrapper
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SQSDELAY = [sys.executable, "-c", "from sqsdelay.cli import main; main()"]
CELERY = [sys.executable, "-m", "celery"]


def environment(extra: dict[str, str]) -> dict[str, str]:
    """The caller's environment without its AWS settings, and ``extra``."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return inherited | {"PYTHONUNBUFFERED": "1"} | extra


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.services.preloaded"])
"""Starts processes that have imported sqsdelay: an import takes half a second."""


class Forked(subprocess.Popen[str]):
    """``sqsdelay``, in a fork of a process that has imported it: a start takes a second of a processor."""

    def __init__(
        self, *arguments: str, env: dict[str, str], before: Callable[[], object] = int, **given: Any
    ) -> None:
        self._before = before
        super().__init__(arguments, env=environment(env), text=True, **given)

    def _execute_child(self, arguments: Sequence[str], *given: Any) -> None:
        cwd, env, pipes = given[4], given[5], given[9:15]
        streams = [Connection(os.dup(pipe)) for pipe in (pipes[0], pipes[3], pipes[5])]
        given = (arguments, env, cwd, streams, self._before)
        self._process = FORKS.Process(target=_command, args=given)
        self._process.start()
        # Another thread's start would look after it, and take its exit code.
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]
        self.pid = self._process.pid or 0
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As a child's own parent waits: it is the fork server."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


def run(
    *arguments: str,
    env: dict[str, str],
    stdin: str = "",
    timeout: float = PATIENCE_SECONDS,
    cwd: Path = ROOT,
    before: Callable[[], object] = int,
) -> subprocess.CompletedProcess[str]:
    """Run ``sqsdelay`` to its end, after something of the test's."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Forked(*arguments, env=env, cwd=cwd, before=before, **pipes) as process:
        try:
            printed = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(arguments, process.returncode, *printed)


def _command(
    arguments: Sequence[str],
    env: dict[str, str],
    cwd: Path,
    streams: Sequence[Connection],
    before: Callable[[], object],
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["sqsdelay", *arguments]
    _ONE_TREE.start()
    before()
    from sqsdelay.cli import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()


@cache
def built(app: typer.Typer, markup: Any, get_command: Any = typer.main.get_command) -> Any:
    """The commands' tree of a kind of terminal, made once in a process: a tenth of a second each time."""
    return get_command(app)


_ONE_TREE = mock.patch("typer.main.get_command", lambda app: built(app, app.rich_markup_mode))


def typed(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``sqsdelay`` in this process; written as a terminal's are."""
    from sqsdelay.cli import main

    out = TextIOWrapper(BytesIO(), encoding="utf-8")
    err = TextIOWrapper(BytesIO(), encoding="utf-8", errors="backslashreplace")
    code = 0
    argv = mock.patch("sys.argv", ["sqsdelay", *arguments])
    with redirect_stdout(out), redirect_stderr(err), argv, _ONE_TREE:
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
    return code, out.read(), err.read()


class Running:
    """A running program whose output can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str, *, timeout: float = PATIENCE_SECONDS) -> None:
        """Return once ``text`` was printed."""
        deadline = time.monotonic() + timeout
        while text not in self.text:
            assert time.monotonic() < deadline, (
                f"{text!r} not printed within {timeout} s:\n{self.text}"
            )
            assert self.process.poll() is None or text in self.text, f"ended early:\n{self.text}"
            time.sleep(0.05)

    def end(self, *, timeout: float = PATIENCE_SECONDS) -> int:
        """Wait for the process to end; returns its exit code."""
        code = self.process.wait(timeout)
        self._reader.join(PATIENCE_SECONDS)
        return code


@contextmanager
def started(
    *arguments: str,
    env: dict[str, str],
    program: Sequence[str] = (),
    cwd: Path = ROOT,
    stderr: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """``sqsdelay``, or another program, in the background; killed at the end, also of a test that fails."""
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    given |= {"stderr": stderr, "cwd": cwd}
    with (
        subprocess.Popen([*program, *arguments], env=environment(env), text=True, **given)
        if program
        else Forked(*arguments, env=env, **given)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def running(*arguments: str, **given: Any) -> Iterator[Running]:
    """The same, with all its output in one."""
    with started(*arguments, **given, stderr=subprocess.STDOUT) as process:
        watched = Running(process)
        try:
            yield watched
        finally:
            process.kill()
            watched.end()
