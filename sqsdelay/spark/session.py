"""The Spark session of sqsdelay's own commands: one, local unless told otherwise, and quiet; and a failed
job's reason, without the traces around it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqsdelay import errors
from sqsdelay.errors import ConfigurationError, InvalidSetting, MissingExtra, SqsDelayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA: Final = 17
"""Oldest Java that Spark 4 runs on. Source: spark.apache.org/docs/4.0.0, "Overview"."""

LOCAL: Final = "local[*,4]"
"""All cores of this machine; a failed task is tried 4 times, which ``local[*]`` does once."""

ONE_PROCESS: Final = re.compile(r"local(\[.*\])?")
"""Masters that run tasks in this machine's one Java process, with this Python's packages."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LOGGING: Final = (Path(__file__).parent / "log4j2.properties").as_uri()
LOGGING_OPTION: Final = f"-Dlog4j2.configurationFile={_LOGGING}"
"""Of Java: quiet logs."""
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": LOGGING_OPTION,
    # Or Spark looks up which line of Python made each of hundreds of columns, for errors nobody sees.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""Or Spark would listen on the address of the machine's name, which may not even resolve."""


@contextmanager
def session(
    app_name: str,
    *,
    master: str = LOCAL,
    time_zone: str = "UTC",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """The Spark session that runs already, or else a new one, quiet, with these ``settings``, which is
    stopped at the end. In its time zone a timestamp without an offset is read. Raises MissingExtra,
    ConfigurationError."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra(
            f"this needs Spark ({error}): pip install 'sqsdelay[spark]', "
            f"and Java {LEAST_JAVA} or newer"
        ) from error
    if master.lower().startswith("sc:"):
        raise ConfigurationError(
            f"--master {master}: the commands do not run over Spark Connect; give a cluster's own master, or "
            "call write_report, reconcile, replay or write_events from Python with a session of Connect's"
        )
    running = SparkSession.getActiveSession()
    if running is not None:
        with configured(running, {_TIME_ZONE: time_zone}):
            yield running
        return
    check_java()
    chosen = dict(_QUIET)
    if master.startswith("local"):
        chosen |= _LOOPBACK
        # Spark's workers would be the PATH's python3, which need not be this one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in (chosen | dict(settings or {})).items():
        builder = builder.config(name, value)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise ConfigurationError(f"Spark does not start on {master}: {cause(error)}") from error
    try:
        with configured(spark, {_TIME_ZONE: time_zone}):
            yield spark
    finally:
        spark.stop()


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """A session that has these settings until the block ends."""
    from pyspark.errors import IllegalArgumentException

    before: Any = {name: spark.conf.get(name) for name in settings}
    try:
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
        except IllegalArgumentException as error:  # Only time zones are anybody's choice.
            raise InvalidSetting(
                f"time zone {value!r} is not known to Spark; write e.g. Europe/Berlin or +02:00"
            ) from error
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def check_java() -> None:
    """Find out whether the Java that Spark would start is there and new enough. Raises ConfigurationError."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        found = f"there is none in JAVA_HOME={home}" if home else "there is none"
    else:
        asked = [java, "-version"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
        match = _VERSION.search(done.stderr + done.stdout)
        if match is not None and int(match[1]) >= LEAST_JAVA:
            return
        found = f"{java} is Java {match[1]}" if match else f"{java} does not print its version"
    raise ConfigurationError(
        f"Spark needs Java {LEAST_JAVA} or newer, and {found}: "
        "install one, and set JAVA_HOME or put its java on the PATH"
    )


_OURS: Final = re.compile(r"^sqsdelay\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHONS: Final = re.compile(r"^[\w.]+(?:Error|Exception): .+$", re.MULTILINE)
"""The last line of a trace from one of Spark's workers."""


def cause(error: Exception) -> str:
    """The one line of a Java trace that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for mark in ("Caused by:", ":"):
        if reasons := [line for line in lines if line.startswith(mark)]:
            return reasons[0].removeprefix(":").strip()
    return lines[0] if lines else "Spark gives no reason"


def failure(error: Exception) -> SqsDelayError:
    """sqsdelay's own error if that ended the job, or else Python's, or Java's cause."""
    text = str(error)
    if "No module named 'sqsdelay'" in text:
        return ConfigurationError(
            "Spark's workers have no sqsdelay: python -m sqsdelay.spark.archive sqsdelay.zip, and give "
            "them that (spark-submit --py-files, or spark.addArtifact(file, pyfile=True))"
        )
    for kind, reason in reversed(_OURS.findall(text)):
        found: type[SqsDelayError] = getattr(errors, kind, SqsDelayError)
        return found(reason) if found.__init__ is SqsDelayError.__init__ else SqsDelayError(reason)
    reason = (_PYTHONS.findall(text) or [cause(error)])[-1]
    missing = reason.startswith("[PATH_NOT_FOUND]")
    return InvalidSetting(reason) if missing else SqsDelayError(reason)
