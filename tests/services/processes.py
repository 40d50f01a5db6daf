"""The real command line, in processes of its own or in this one."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from io import BytesIO, TextIOWrapper
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self
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


_ONE_AT_A_TIME = threading.Lock()
"""A start looks after all other forks, and two threads that look at the same end see it once."""


class Forked:
    """``sqsdelay``, in a fork of a process that has imported it: a start takes a second of a processor.
    Tests use it as a `Popen`."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str],
        cwd: Path = ROOT,
        before: Callable[[], object] = int,
        stderr: int = subprocess.PIPE,
    ) -> None:
        (given, giving), (printed, printing), (told, telling) = (FORKS.Pipe(False) for _ in "012")
        ends = [given, printing, telling if stderr == subprocess.PIPE else printing]
        command = (arguments, environment(env), cwd, ends, before)
        self._process = FORKS.Process(target=_command, args=command)
        with _ONE_AT_A_TIME:
            self._process.start()
        self.stdin = os.fdopen(os.dup(giving.fileno()), "w")
        self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno())) for end in (printed, told))
        for end in (given, giving, printed, printing, told, telling):
            end.close()
        self.pid = self._process.pid or 0
        self.kill, self.terminate = self._process.kill, self._process.terminate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait(PATIENCE_SECONDS)
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    @property
    def returncode(self) -> int | None:
        with _ONE_AT_A_TIME:
            return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired("sqsdelay", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def communicate(self, given: str = "", timeout: float = PATIENCE_SECONDS) -> tuple[str, str]:
        """What it printed, to its end; one that outlasts its time is killed."""
        with ThreadPoolExecutor() as threads:
            printed, told = (threads.submit(each.read) for each in (self.stdout, self.stderr))
            with suppress(BrokenPipeError):
                if given:
                    self.stdin.write(given)
                self.stdin.close()
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            return printed.result(), told.result()


def run(
    *arguments: str,
    env: dict[str, str],
    stdin: str = "",
    timeout: float = PATIENCE_SECONDS,
    cwd: Path = ROOT,
    before: Callable[[], object] = int,
) -> subprocess.CompletedProcess[str]:
    """Run ``sqsdelay`` to its end, after something of the test's."""
    with Forked(*arguments, env=env, cwd=cwd, before=before) as process:
        printed = process.communicate(stdin, timeout)
        return subprocess.CompletedProcess(arguments, process.wait(), *printed)


def _command(
    arguments: Sequence[str],
    env: dict[str, str],
    cwd: Path,
    ends: Sequence[Connection],
    before: Callable[[], object],
) -> None:
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
    for end in set(ends):
        end.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["sqsdelay", *arguments]
    _ONE_TREE.start()
    before()
    from sqsdelay.cli import main

    # A fork of multiprocessing runs nothing at its exit.
    with ExitStack() as at_exit, mock.patch("atexit.register", at_exit.callback):
        main()


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


Process = subprocess.Popen[str] | Forked


class Running:
    """A running program whose output can be waited for."""

    def __init__(self, process: Process) -> None:
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
            if self.process.poll() is not None:
                self._reader.join(PATIENCE_SECONDS)
                assert text in self.text, f"ended early:\n{self.text}"
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
) -> Iterator[Process]:
    """``sqsdelay``, or another program, in the background; killed at the end, also of a test that fails."""
    process: Process
    if program:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        given |= {"stderr": stderr, "cwd": cwd, "env": environment(env), "text": True}
        process = subprocess.Popen([*program, *arguments], **given)
    else:
        process = Forked(*arguments, env=env, cwd=cwd, stderr=stderr)
        process.stdin.close()
    with process:
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
