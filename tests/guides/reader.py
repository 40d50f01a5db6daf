"""A reader who types every block of a page, from top to bottom, on a local AWS."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from sqsdelay import Change
from sqsdelay.testing.local_aws import LocalAws
from tests.guides.covered_elsewhere import elsewhere
from tests.guides.page import Block
from tests.services.processes import Running, running, typed

SERVING: Final = {
    "consume": "consuming ",
    "dispatch": "dispatching ",
    "timeout-manager": "serving ",
}
"""Commands that run until they are stopped, and what they say when they have begun."""

_TOLD: Final = re.compile(r"^(\S.*?)  # (\[.*?\]|Change\.[A-Z]+)(?::.*)?$", re.MULTILINE)
"""A line of Python, and what its comment says that it gives."""


class Reader:
    """Runs blocks in an empty folder and an empty account; what Python defines stays defined.

    Attributes:
        names: the names Python blocks see and define.
        replaced: what a page names that is something else here, e.g. a server's address.
        exit_codes: of commands that are to end with another code than 0, by their text.
        printed: what each command printed, and each block of Python by its number.
    """

    def __init__(
        self,
        aws: LocalAws,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.aws = aws
        self.folder = folder
        self.names: dict[str, Any] = {"Change": Change}
        self.replaced: dict[str, str] = {}
        self.exit_codes: dict[str, int] = {}
        self.printed: dict[str | int, str] = {}
        self._served: list[Running] = []
        self._stack = ExitStack()
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.chdir(folder)
        monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # A block may set up another.
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        empty(aws)

    def read(self, block: Block) -> None:
        """Run one block."""
        text = block.text
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        if block.language == "python":
            text = _TOLD.sub(r"assert (\1) == \2", text)
            self._capsys.readouterr()
            exec(compile(text, f"{block.page} block {block.number}", "exec"), self.names)
            self.printed[block.number] = self._capsys.readouterr().out
            return
        for command in Block(block.page, block.number, block.language, text).commands():
            if elsewhere(command) is None:
                self._type(command)

    def _type(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._monkeypatch.setenv(name, os.path.expandvars(value))
            return
        program = Path(words[0]).name
        assert program == "sqsdelay", (
            f"{command!r} is run nowhere: see tests/guides/covered_elsewhere.py"
        )
        if words[-1] == "&":
            words.pop()
        arguments = words[1:]
        if arguments[0] in SERVING or _receives_for_ever(arguments):
            self._serve(arguments)
            return
        target = None
        if ">" in arguments:
            target = self.folder / arguments[-1]
            arguments = arguments[: arguments.index(">")]
        code, out, err = self.run(*arguments)
        expected = self.exit_codes.get(command, 0)
        assert code == expected, f"{command!r} ended with {code}: {out}{err}"
        self.printed[command] = out
        if target is not None:
            target.write_text(out)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """``sqsdelay`` in this process; exit code, stdout, stderr."""
        return typed(*arguments)

    def _serve(self, arguments: list[str]) -> None:
        settings = {
            name: value for name, value in os.environ.items() if name.startswith("SQSDELAY_")
        }
        env = self.aws.environment() | settings
        served = self._stack.enter_context(running(*arguments, env=env, cwd=self.folder))
        self._served.append(served)
        if arguments[0] in SERVING:
            served.wait_for(SERVING[arguments[0]])

    def stop(self) -> None:
        """All that serves must still do so; then it is ended."""
        try:
            for served in self._served:
                assert served.process.poll() is None, f"ended by itself: {served.text}"
        finally:
            self._served.clear()
            self._stack.close()

    def end(self) -> None:
        """End what serves, and close what is open."""
        try:
            self.stop()
        finally:
            for value in self.names.values():
                if type(value).__module__.startswith(("sqsdelay.", "sqlite3")):
                    getattr(value, "close", lambda: None)()


def _receives_for_ever(arguments: list[str]) -> bool:
    return arguments[0] == "receive" and not {"--count", "--idle"} & set(arguments)


def empty(aws: LocalAws) -> None:
    """Delete every queue, table and bucket."""
    sqs, s3, dynamodb = (aws.client(service) for service in ("sqs", "s3", "dynamodb"))
    for url in sqs.list_queues().get("QueueUrls", []):
        sqs.delete_queue(QueueUrl=url)
    for table in dynamodb.list_tables()["TableNames"]:
        dynamodb.delete_table(TableName=table)
    for bucket in s3.list_buckets()["Buckets"]:
        for kept in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
            s3.delete_object(Bucket=bucket["Name"], Key=kept["Key"])
        s3.delete_bucket(Bucket=bucket["Name"])
