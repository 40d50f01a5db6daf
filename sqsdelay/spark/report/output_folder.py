"""The folder of a report: made whole or not at all, and never in place of something else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqsdelay.errors import ConfigurationError
from sqsdelay.spark.locations import absolute, hadoop_uri, is_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK: Final = "report.json"
"""The file by which a report's folder is known."""


class NewFolder(Protocol):
    """A folder that a report is being written into."""

    def uri(self, name: str) -> str:
        """Where Spark reads and writes what is called so."""
        ...

    def write_text(self, name: str, text: str) -> None:
        """Write a file of its own."""
        ...

    def remove(self, name: str) -> None:
        """Remove a folder in it."""
        ...


def check_replaceable(folder: str) -> None:
    """Refuse a folder of this machine that holds something else than a report.

    What another file system holds is looked at when Spark runs.

    Raises:
        ConfigurationError: it is a file, or a folder that no report made.
    """
    path = Path(absolute(folder))
    if is_uri(folder) or not path.exists():
        return
    if not path.is_dir():
        raise _file(folder)
    if any(path.iterdir()) and not (path / MARK).is_file():
        raise _something_else(folder)


@contextmanager
def replaced(spark: SparkSession, folder: str) -> Iterator[NewFolder]:
    """A new folder to write into, which takes the place of ``folder`` at the end.

    If anything fails, what was there before stays as it was. A store of objects has no folders to
    rename: there the last step takes a while, and is not one.

    Raises:
        ConfigurationError: as `check_replaceable`, or it cannot be written.
    """
    check_replaceable(folder)
    begun = _HadoopFolder(spark, folder) if is_uri(folder) else _LocalFolder(spark, folder)
    try:
        yield begun
    except BaseException:
        begun.drop()
        raise
    begun.put_in_place()


class _LocalFolder:
    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._whole = Path(absolute(folder)).resolve()
        self._new, self._old = (
            self._whole.with_name(f".{self._whole.name}.{word}") for word in ("new", "old")
        )
        try:
            shutil.rmtree(self._new, ignore_errors=True)
            self._new.mkdir(parents=True)
        except OSError as error:
            raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error

    def uri(self, name: str) -> str:
        return hadoop_uri(self._spark, str(self._new / name), "--out")

    def write_text(self, name: str, text: str) -> None:
        (self._new / name).write_text(text, encoding="utf-8")

    def remove(self, name: str) -> None:
        shutil.rmtree(self._new / name)

    def drop(self) -> None:
        shutil.rmtree(self._new, ignore_errors=True)

    def put_in_place(self) -> None:
        shutil.rmtree(self._old, ignore_errors=True)
        if self._whole.exists():
            self._whole.rename(self._old)
        self._new.rename(self._whole)
        shutil.rmtree(self._old, ignore_errors=True)


class _HadoopFolder:
    """By the file systems that Spark itself uses: whatever it can write to is good for a report."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        uri = hadoop_uri(spark, folder, "--out").rstrip("/")
        jvm: Any = spark._jvm
        context: Any = spark._jsc
        self._path = jvm.org.apache.hadoop.fs.Path
        self._whole = self._path(uri)
        self._fs = self._whole.getFileSystem(context.hadoopConfiguration())
        self._check(folder)
        parent, name = self._whole.getParent(), self._whole.getName()
        self._new, self._old = (self._path(parent, f".{name}.{word}") for word in ("new", "old"))
        self._fs.delete(self._new, True)
        self._fs.mkdirs(self._new)

    def _check(self, folder: str) -> None:
        if not self._fs.exists(self._whole):
            return
        if not self._fs.getFileStatus(self._whole).isDirectory():
            raise _file(folder)
        empty = not len(self._fs.listStatus(self._whole))
        if not empty and not self._fs.exists(self._path(self._whole, MARK)):
            raise _something_else(folder)

    def uri(self, name: str) -> str:
        return str(self._path(self._new, name).toString())

    def write_text(self, name: str, text: str) -> None:
        stream = self._fs.create(self._path(self._new, name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def remove(self, name: str) -> None:
        self._fs.delete(self._path(self._new, name), True)

    def drop(self) -> None:
        self._fs.delete(self._new, True)

    def put_in_place(self) -> None:
        self._fs.delete(self._old, True)
        if self._fs.exists(self._whole):
            self._rename(self._whole, self._old)
        self._rename(self._new, self._whole)
        self._fs.delete(self._old, True)

    def _rename(self, old: Any, new: Any) -> None:
        if not self._fs.rename(old, new):
            raise ConfigurationError(
                f"{old.toString()} cannot be renamed to {new.toString()}; the report is in the former"
            )


def _file(folder: str) -> ConfigurationError:
    return ConfigurationError(f"{folder} is a file; name a folder for the report")


def _something_else(folder: str) -> ConfigurationError:
    return ConfigurationError(
        f"{folder} is not empty and holds no report ({MARK} is missing); "
        "name another folder, or empty this one"
    )
