"""Spark as sqsdelay's jobs use it: the session of its own commands, local unless told otherwise, and quiet;
local paths and URIs where jobs keep files; and a failed job's reason, without the traces around it.

Two kinds of processes reach files. Spark's Java reads and writes tables through Hadoop's ``FileSystem``;
Python workers, which have no Java of their own, through pyarrow's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import TimeoutError as NoAnswer
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

from sqsdelay import errors
from sqsdelay.errors import ConfigurationError, InvalidSetting, MissingExtra, SqsDelayError

if TYPE_CHECKING:
    from pyarrow import fs
    from pyspark.sql import SparkSession

LEAST_JAVA: Final = 17
"""Oldest Java that Spark 4 runs on. Source: spark.apache.org/docs/4.0.0, "Overview"."""

LOCAL: Final = "local[*,4]"
"""All cores of this machine; a failed task is tried 4 times, which ``local[*]`` does once."""

ONE_PROCESS: Final = re.compile(r"local(\[.*\])?")
"""Masters that run tasks in this machine's one Java process, with this Python's packages."""

GRACE_SECONDS: Final = 3600
"""How long after its due time a message that has not arrived counts as late, not as lost."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
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
    logging = (Path(__file__).parent / "log4j2.properties").as_uri()
    chosen = _QUIET | {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging}"}
    if master.startswith("local"):
        chosen |= _LOOPBACK
        # Spark's workers would be the PATH's python3, which need not be this one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen |= settings or {}
    builder = SparkSession.builder.master(master).appName(app_name).config(map={**chosen})
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

    with ExitStack() as before:
        for name, value in settings.items():
            kept: Any = spark.conf.get(name)
            try:
                spark.conf.set(name, value)
            except IllegalArgumentException as error:  # Only time zones are anybody's choice.
                raise InvalidSetting(
                    f"time zone {value!r} is not known to Spark; write e.g. Europe/Berlin or +02:00"
                ) from error
            before.callback(spark.conf.set, name, kept)
        yield


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


_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_LOCAL: Final = re.compile(r"file:(?://)?(?=/(?!/))", re.IGNORECASE)
_S3: Final = re.compile(r"s3[an]?(?=://)", re.IGNORECASE)
"""Hadoop's names for S3, and EMR's and pyarrow's own."""
ANSWER_SECONDS: Final = 30
"""For a file system's first answer. Hadoop asks a host that is silent for minutes, or for ever; Google's
client looks for credentials for a quarter of an hour."""


def absolute(path: str) -> str:
    """A path that means the same in every process; URIs as they are, but for ``file:``."""
    if (local := _LOCAL.match(path)) is not None:
        return path[local.end() :]
    return path if _URI.match(path) else os.path.abspath(path)


MAX_JOB_BYTES: Final = 160
"""Of a job's name as it stands in names of files, which file systems let have 255 bytes."""


def file_name(job: str) -> str:
    """A job's name as part of a file's: one segment of a path, and no other job's. Raises
    ConfigurationError."""
    try:
        # "." and ".." are other folders; quote() leaves dots as they are.
        name = quote(job, safe="") if job.strip(".") else job.replace(".", "%2E")
    except UnicodeEncodeError:
        raise InvalidSetting("is no text; name it in Unicode", job=job) from None
    if len(name) > MAX_JOB_BYTES:
        raise InvalidSetting(
            f"has {len(name)} bytes in names of files, where other than ASCII letters and digits take 3 "
            f"for each byte; the limit is {MAX_JOB_BYTES}: shorten it",
            job=job,
        )
    return name


def is_uri(path: str) -> bool:
    """Whether a path names a file system besides this machine's."""
    return _URI.match(absolute(path)) is not None


def opened(path: str, option: str, *, make: bool = False) -> tuple[fs.FileSystem, str]:
    """pyarrow's file system of a path or URI, and the path in it; ``make``: a folder. Raises
    ConfigurationError."""
    import pyarrow as pa
    from pyarrow import fs

    uri = _S3.sub("s3", absolute(path))
    is_google = uri.startswith(("gs:", "gcs:"))
    if is_google and "retry_limit_seconds" not in uri:  # Of each call, a quarter of an hour.
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds={ANSWER_SECONDS}"

    def ask() -> tuple[fs.FileSystem, str]:
        found, root = fs.FileSystem.from_uri(uri)
        if make:
            found.create_dir(root.rstrip("/"))
        elif is_google:  # Which looks for credentials only when it is asked something.
            found.get_file_info(root)
        return found, root.rstrip("/")

    try:
        return cast("tuple[fs.FileSystem, str]", _answered(ask, f"option {option}={path!r}"))
    except (pa.ArrowException, OSError) as error:
        # What it tried to load Hadoop from is of no use to anybody.
        told = " ".join(str(error).split()).partition(" dlopen(")[0]
        raise ConfigurationError(
            f"option {option}={path!r} cannot be used: {told}; give a folder that all of Spark's "
            "machines share, or s3://…, gs://…, abfss://…, hdfs://…"
        ) from error


def _answered(ask: Callable[[], Any], asked: str) -> Any:
    """A file system's first answer, which it may look for as long as it likes. Raises ConfigurationError."""
    with ThreadPool(1) as pool:  # Whose threads do not keep the process alive.
        try:
            return pool.apply_async(ask).get(ANSWER_SECONDS)
        except NoAnswer:
            raise ConfigurationError(
                f"{asked} does not answer within {ANSWER_SECONDS} s; check its host, port and credentials"
            ) from None


def hadoop_uri(spark: SparkSession, path: str, option: str) -> str:
    """A path or URI for Spark's own readers and writers, which answers. A plain path becomes a ``file:`` URI:
    whatever the cluster's default file system is, it means this machine's disk, as it does for every other
    command. ``s3:`` becomes ``s3a:`` where Spark knows only that. Raises ConfigurationError."""
    given = absolute(path)
    scheme = _URI.match(given)
    if scheme is None:
        return f"file://{given}"
    java: Any = spark
    if getattr(java, "_jsc", None) is None:  # Spark Connect: the server will say.
        return given
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    settings, name = java._jsc.hadoopConfiguration(), given
    # EMR and Glue know S3 by its own name, a plain Spark by the name of Hadoop's connector.
    if scheme[1].lower() == "s3" and settings.get("fs.s3.impl") is None:
        name = _S3.sub("s3a", given)

    def ask() -> None:
        place = java._jvm.org.apache.hadoop.fs.Path(name)
        files = place.getFileSystem(settings)
        with suppress(Py4JJavaError, PySparkException):  # Who needs what fails will say so.
            files.exists(place)

    try:
        _answered(ask, f"{option}={path!r}")
    except Py4JJavaError as error:
        raise ConfigurationError(
            f"{option}={path!r} cannot be used: {str(error.java_exception).splitlines()[0]}. Spark has no "
            f"file system for {scheme[1]}: here; name its package, e.g. "
            "spark.jars.packages=org.apache.hadoop:hadoop-aws:… for s3a://, or give another folder"
        ) from error
    return name


_OURS: Final = re.compile(r"^sqsdelay\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHONS: Final = re.compile(r"^[\w.]+(?:Error|Exception): .+$", re.MULTILINE)
"""The last line of a trace from one of Spark's workers."""
_READ: Final = re.compile(r"while reading file (\S+)\.(?:\s|$)")


def cause(error: Exception) -> str:
    """The one line of a Java trace that says why, and the file that could not be read."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = (each for mark in ("Caused by:", ":", "") for each in lines if each.startswith(mark))
    told = next(marked, "Spark gives no reason").removeprefix(":").strip()
    read = _READ.search(str(error))
    return told if read is None or read[1] in told else f"{told} ({read[1]})"


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
    told, exists, _ = reason.partition(' Set mode as "overwrite"')
    if exists or told.startswith("[PATH_NOT_FOUND]"):
        return InvalidSetting(f"{told} Name a new folder." if exists else told)
    return SqsDelayError(reason)
