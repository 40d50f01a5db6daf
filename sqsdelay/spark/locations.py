"""Where Spark jobs keep files: local paths and URIs, checked in one place before a job begins.

Two kinds of processes reach them. Spark's Java reads and writes tables through Hadoop's
``FileSystem``; Python workers, which have no Java of their own, through pyarrow's.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sqsdelay.errors import ConfigurationError, InvalidSetting

if TYPE_CHECKING:
    from pyarrow import fs
    from pyspark.sql import SparkSession

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_LOCAL: Final = re.compile(r"file:(?://)?(?=/(?!/))", re.IGNORECASE)
_S3: Final = re.compile(r"s3[an]?(?=://)", re.IGNORECASE)
"""Hadoop's names for S3, and EMR's and pyarrow's own."""


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


def opened(path: str, option: str) -> tuple[fs.FileSystem, str]:
    """pyarrow's file system of a path or URI, and the path in it. Raises ConfigurationError."""
    import pyarrow as pa
    from pyarrow import fs

    try:
        found, root = fs.FileSystem.from_uri(_S3.sub("s3", absolute(path)))
    except (pa.ArrowException, OSError) as error:
        # What it tried to load Hadoop from is of no use to anybody.
        told = " ".join(str(error).split()).partition(" dlopen(")[0]
        raise ConfigurationError(
            f"option {option}={path!r} cannot be used: {told}; give a folder that all of Spark's "
            "machines share, or s3://…, gs://…, abfss://…, hdfs://…"
        ) from error
    return found, root.rstrip("/")


def hadoop_uri(spark: SparkSession, path: str, option: str) -> str:
    """A path or URI for Spark's own readers and writers. A plain path becomes a ``file:`` URI: whatever the
    cluster's default file system is, it means this machine's disk, as it does for every other command.
    ``s3:`` becomes ``s3a:`` where Spark knows only that. Raises ConfigurationError."""
    given = absolute(path)
    scheme = _URI.match(given)
    if scheme is None:
        return f"file://{given}"
    context = getattr(spark, "_jsc", None)
    if context is None:  # Spark Connect: the server will say.
        return given
    from py4j.protocol import Py4JJavaError

    jvm = spark._jvm
    assert jvm is not None, "a session with a Java context has its virtual machine"
    # EMR and Glue know S3 by its own name, a plain Spark by the name of Hadoop's connector.
    names = [given, _S3.sub("s3a", given)] if scheme[1].lower() == "s3" else [given]
    told = ""
    for name in names:
        try:
            jvm.org.apache.hadoop.fs.Path(name).getFileSystem(context.hadoopConfiguration())
        except Py4JJavaError as error:
            told = told or str(error.java_exception).splitlines()[0]
        else:
            return name
    raise ConfigurationError(
        f"{option}={path!r} cannot be used: {told}. Spark has no file system for {scheme[1]}: "
        f"here; name its package, e.g. spark.jars.packages=org.apache.hadoop:hadoop-aws:… "
        "for s3a://, or give another folder"
    )
