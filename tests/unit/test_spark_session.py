"""Java is looked for before Spark is started, and what is wrong is told in one line."""

from __future__ import annotations

import logging
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import typer
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from sqsdelay.cli import app
from sqsdelay.cli.spark_job import _ended_by_ctrl_c
from sqsdelay.errors import ConfigurationError, NotAllSent, SqsDelayError
from sqsdelay.spark import register, session
from tests.patience import PATIENCE_SECONDS, ended

OPENJDK = 'openjdk version "{}" 2025-04-15'


def java(folder: Path, version: str) -> None:
    """A program that tells a version as java does: on stderr."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (OPENJDK.format("17.0.15"), None),
        (OPENJDK.format("21"), None),
        (OPENJDK.format("11.0.2"), "is Java 11:"),
        ('java version "1.8.0_402"', "is Java 8:"),
        ("something else", "does not print its version"),
    ],
)
def test_java_17_and_newer_will_do(
    version: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by JAVA_HOME or on the PATH, as Spark finds it. An older one is refused with what is needed."""
    java(tmp_path, version)
    for name, place in (("JAVA_HOME", tmp_path), ("PATH", tmp_path / "bin")):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv(name, str(place))
        if told is None:
            session.check_java()
            continue
        with pytest.raises(ConfigurationError, match=f"Java 17 or newer, and .*{told}"):
            session.check_java()


@pytest.mark.parametrize("command", ["schedule rows.csv --endpoint orders", "report x --out out"])
def test_without_java_a_command_says_so_in_one_line(command: str, tmp_path: Path) -> None:
    """Not Spark's JAVA_GATEWAY_EXITED, and no trace."""
    (tmp_path / "rows.csv").write_text("body\n")
    done = run(["pipeline", *command.split()], tmp_path, "")
    assert done.returncode == 1
    assert done.stderr == (
        "sqsdelay: Spark needs Java 17 or newer, and there is none: "
        "install one, and set JAVA_HOME or put its java on the PATH\n"
    )


def test_spark_connect_is_refused_in_one_line() -> None:
    """Also beside a session that runs. From Python it works; Spark's own error is two pages of trace."""
    told = r"\A--master sc://host: [^\n]+ from Python [^\n]+\Z"
    started = session.session("tests", master="sc://host")
    with pytest.raises(ConfigurationError, match=told), started:
        raise AssertionError


def test_without_pyspark_a_command_names_the_extra(tmp_path: Path) -> None:
    """In one line too; and neither it nor the other commands import pyspark to say so."""
    (tmp_path / "rows.csv").write_text("body\n")
    block = "sys.modules['pyspark'] = None; "
    done = run(["pipeline", "schedule", "rows.csv", "--endpoint", "orders"], tmp_path, block)
    assert done.returncode == 1
    assert "pip install 'sqsdelay[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert run(["pipeline", "--help"], tmp_path, block).returncode == 0


def run(arguments: list[str], folder: Path, before: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; {before}from sqsdelay.cli import main; main()"
    return ended(
        [sys.executable, "-c", program, *arguments],
        env={"PATH": str(folder), "COLUMNS": "200"},
        cwd=folder,
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[X]\nTraceback:\n  File\nsqsdelay.errors.NotAllSent: 1 of 2 rows\n x", "1 of 2 rows"),
        ("X:\nsqsdelay.errors.NewerError: of another version\n", "of another version"),
        ("X:\nTraceback:\nModuleNotFoundError: No m\n", "ModuleNotFoundError: No m"),
        ("[PATH_NOT_FOUND] no such path\n at org.apache", "[PATH_NOT_FOUND] no such path"),
    ],
)
def test_a_failed_job_is_told_in_one_line(text: str, told: str) -> None:
    """sqsdelay's own message, or the worker's, or Spark's first line; without the traces."""
    found = session.failure(PySparkException(text))
    assert str(found) == told
    assert isinstance(found, NotAllSent if "NotAllSent" in text else SqsDelayError)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("An error:\n: X: 0 threads\n\tat a.b\n", "X: 0 threads"),
        ("[FAILED] it\n: X\nCaused by: Y: no gzip\nCaused by: Z\n", "Caused by: Y: no gzip"),
        ("[NAMED] it\n\tat a.b\n", "[NAMED] it"),
        ("[X] while reading file s3://b/a.gz.  SQL\nCaused by: Y", "Caused by: Y (s3://b/a.gz)"),
        ("", "Spark gives no reason"),
    ],
)
def test_a_java_trace_is_told_in_one_line(text: str, told: str) -> None:
    """Its first cause, or what Java said, or Spark's first line."""
    assert session.cause(PySparkException(text)) == told


def test_settings_are_put_back_where_spark_refuses_another() -> None:
    """A session that somebody goes on to use is left as it was."""
    conf = Mock()
    conf.set.side_effect = [None, KeyError, None, None]
    with pytest.raises(KeyError), session.configured(Mock(conf=conf), {"a": "1", "b": "2"}):
        raise AssertionError
    assert conf.set.call_args_list[2] == call("a", conf.get.return_value)


def test_ctrl_c_while_java_starts_ends_after_it() -> None:
    """A start that is broken off leaves a Java that nobody ends, which writes a trace into the terminal."""
    begun = []

    def job() -> None:
        with _ended_by_ctrl_c(None) as interruptible:
            signal.raise_signal(signal.SIGINT)
            begun.append("java")
            with interruptible(Mock()):
                begun.append("job")

    with pytest.raises(typer.Exit):
        job()
    assert begun == ["java"]


def test_ctrl_c_does_not_ask_java_where_an_answer_is_awaited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python cannot read it within a handler: py4j would print tracebacks."""
    asked, job = list[threading.Thread](), Mock()
    job.sparkContext.cancelAllJobs = lambda: asked.append(threading.current_thread())

    def stopped_job() -> None:
        with _ended_by_ctrl_c(None) as interruptible, interruptible(job):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                logging.getLogger().error("KeyboardInterrupt while sending command.")

    with pytest.raises(typer.Exit):
        stopped_job()
    assert caplog.messages == []
    logging.getLogger().error("told again")
    assert (caplog.messages, len(asked)) == (["told again"], 1)
    assert asked[0] is not threading.main_thread()


def test_no_timer_outlives_a_job_that_ctrl_c_ends(tmp_path: Path) -> None:
    """Spark's session ends next, and a timer that asked it to cancel would print a traceback."""
    before, started = {*threading.enumerate()}, set[threading.Thread]()
    sends, job = {"receipts": str(tmp_path), "job": "j"}, Mock()
    (tmp_path / "j").mkdir()

    def stopped_job() -> None:
        with _ended_by_ctrl_c(sends) as interruptible, interruptible(job):
            signal.raise_signal(signal.SIGINT)
            started.update({*threading.enumerate()} - before)
            raise KeyboardInterrupt

    with pytest.raises(typer.Exit):
        stopped_job()
    (patience,) = started
    patience.join(PATIENCE_SECONDS)
    assert not job.sparkContext.cancelAllJobs.called


@pytest.mark.parametrize(("more", "ends"), [([], True), (["--plan"], False)])
def test_ctrl_c_of_a_plan_does_not_end_the_job(
    more: list[str], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be running, under the same name."""
    asked = Mock(return_value=Mock(spec=()))
    monkeypatch.setattr(sys.modules["sqsdelay.cli.spark_job"], "with_table", asked)
    given = ["rows.csv", "--job", "j", "--receipts", "r", *more]
    CliRunner().invoke(app, ["pipeline", "schedule", *given])
    sends = asked.call_args.kwargs["sends"]
    assert (sends is not None and "receipts" in sends) == ends


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--replay", "ledger", "--receipts", "r", "--past-due", "reject"], ("--past-due",)),
        (["--replay", "ledger", "--receipts", "r", "--unique"], ("--unique",)),
        (["--replay", "ledger"], ("--replay", "--receipts")),
        (["--grace", "5"], ("--grace", "--replay")),
        (["--as-of", "1970-01-01T00:00:00Z"], ("--as-of", "--replay")),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options: list[str], told: tuple[str, ...], tmp_path: Path
) -> None:
    """Before Spark is started, or even looked for."""
    (tmp_path / "rows.csv").write_text("body\n")
    block = "sys.modules['pyspark'] = None; "
    done = run(["pipeline", "schedule", "rows.csv", *options], tmp_path, block)
    assert done.returncode == 2
    assert all(option in done.stderr for option in told)


@pytest.mark.parametrize("path", ["{}/x", "file:{}/x", "file://{}/x", "FILE:{}/x"])
def test_a_file_uri_is_a_path_of_this_machine(path: str, tmp_path: Path) -> None:
    """Hadoop writes it with one slash, everybody else with three; the same folder."""
    given = path.format(tmp_path)
    assert session.absolute(given) == f"{tmp_path}/x"
    assert not session.is_uri(given)
    system, root = session.opened(given, "rejects")
    assert (system.type_name, root) == ("local", f"{tmp_path}/x")


def test_a_relative_path_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in other folders."""
    monkeypatch.chdir(tmp_path)
    assert session.absolute("rejects") == f"{tmp_path}/rejects"
    assert session.absolute("s3://bucket/x") == "s3://bucket/x"


@pytest.mark.parametrize("uri", ["dbfs:/x", "ftp://h/x", "hdfs://127.0.0.1:1/x"])
def test_what_workers_cannot_reach_is_refused_in_one_line(uri: str) -> None:
    """With the option, the value and what can be given instead."""
    with pytest.raises(ConfigurationError, match=r"\Aoption rejects='.*' cannot be used: [^\n]+\Z"):
        session.opened(uri, "rejects")


@pytest.mark.parametrize("make", [True, False])
def test_a_file_system_that_is_silent_costs_one_line(
    make: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's client, without credentials too, would look for an answer for a quarter of an hour."""
    monkeypatch.setattr(session, "ANSWER_SECONDS", 0.1)
    told = r"\Aoption receipts='gs://.* does not answer within 0.1 s; [^\n]+ credentials\Z"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1%3A{silent.getsockname()[1]}"
        uri = f"gs://anonymous@b/x?scheme=http&retry_limit_seconds=1&endpoint_override={host}"
        with pytest.raises(ConfigurationError, match=told):
            session.opened(uri, "receipts", make=make)


def test_google_is_limited_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once it has answered."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

    monkeypatch.setattr(session, "ANSWER_SECONDS", 2)
    with HTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever).start()
        host = f"127.0.0.1%3A{server.server_port}"
        uri = f"gs://anonymous@b/x?scheme=http&endpoint_override={host}"
        try:
            system, root = session.opened(uri, "receipts")
        finally:
            server.shutdown()
    with pytest.raises(OSError, match="Retry policy exhausted"):
        system.get_file_info(root)


def test_what_is_missing_is_not_taken_for_an_old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pyarrow may be."""
    monkeypatch.setitem(sys.modules, "sqsdelay.spark.sink.data_source", None)
    with pytest.raises(ImportError, match="data_source"):
        register(Mock(version="4.1.1"))


def test_a_plain_path_stays_on_this_machine_whatever_the_clusters_default(tmp_path: Path) -> None:
    """fs.defaultFS=hdfs://… would make it a folder of the cluster's."""
    spark: Any = SimpleNamespace(_jsc=None)
    assert session.hadoop_uri(spark, str(tmp_path), "--out") == f"file://{tmp_path}"
    assert session.hadoop_uri(spark, "s3a://bucket/x", "--out") == "s3a://bucket/x"


def test_a_jobs_name_is_one_segment_of_a_path_and_no_other_jobs() -> None:
    """Whatever it holds; what no file system can hold is refused."""
    names = ["a/b", "a_b", "a%2Fb", "a%b", ".", "..", "a b", "a\nb", "a\0b", "ä", "*"]
    found = [session.file_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(re.fullmatch(r"[\w%.-]+", name, re.ASCII) and name.strip(".") for name in found)
    with pytest.raises(ConfigurationError, match=r"job=.*has 161 bytes.*limit is 160: shorten it"):
        session.file_name("x" * 161)
    with pytest.raises(ConfigurationError, match=r"job='\\ud800' is no text"):
        session.file_name("\ud800")
