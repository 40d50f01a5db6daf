"""The folder of a report: made whole or not at all, and never in place of something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyarrow.fs import FileInfo, FileSelector, FileType, copy_files

from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.locations import absolute, hadoop_uri, is_uri, opened

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
    by_java = is_uri(folder) and getattr(spark, "_jsc", None) is not None
    begun = _HadoopFolder(spark, folder) if by_java else _ArrowFolder(spark, folder)
    try:
        yield begun
        begun.put_in_place()
    except BaseException:
        begun.drop()
        raise


class _ArrowFolder:
    """By pyarrow: on this machine, and over Spark Connect wherever its server and this process reach."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._given = folder
        whole = folder if is_uri(folder) else str(Path(absolute(folder)).resolve())
        self._fs, self._whole = opened(whole, "--out")
        self._new, self._old = (_beside(self._whole, word) for word in ("new", "old"))
        self._uri = _beside(hadoop_uri(spark, whole, "--out").rstrip("/"), "new")
        try:
            self._check()
            self._delete(self._new)
            self._fs.create_dir(self._new)
        except OSError as error:
            told = error.strerror or " ".join(str(error).split())
            raise ConfigurationError(f"{folder} cannot be written: {told}") from error

    def _check(self) -> None:
        found = self._fs.get_file_info([self._whole, f"{self._whole}/{MARK}"])
        if found[0].type is FileType.File:
            raise _file(self._given)
        if found[1].type is FileType.NotFound and self._listed(recursive=False):
            raise _something_else(self._given)

    def _listed(self, *, recursive: bool) -> list[FileInfo]:
        wanted = FileSelector(self._whole, allow_not_found=True, recursive=recursive)
        return list(self._fs.get_file_info(wanted))

    def uri(self, name: str) -> str:
        return f"{self._uri}/{name}"

    def write_text(self, name: str, text: str) -> None:
        with self._fs.open_output_stream(f"{self._new}/{name}") as stream:
            stream.write(text.encode())

    def remove(self, name: str) -> None:
        self._delete(f"{self._new}/{name}")

    def drop(self) -> None:
        self._delete(self._new)

    def put_in_place(self) -> None:
        tables = self._fs.get_file_info(FileSelector(self._new))
        if not any(each.type is FileType.Directory for each in tables):
            raise ConfigurationError(
                f"{self._given} is another folder to Spark's server, which writes the tables, than to this "
                "process, which writes the page; give --out a URI that both reach"
            )
        if self._fs.type_name not in ("local", "hdfs"):
            self._copy()
            return
        self._delete(self._old)
        if self._fs.get_file_info(self._whole).type is not FileType.NotFound:
            self._fs.move(self._whole, self._old)
        self._fs.move(self._new, self._whole)
        self._delete(self._old)

    def _copy(self) -> None:
        """Where no folder can be renamed. If this is cut off, the mark lets the next report go on."""
        for each in self._listed(recursive=True):
            if each.type is FileType.File and each.path != f"{self._whole}/{MARK}":
                self._fs.delete_file(each.path)
        copy_files(
            self._new, self._whole, source_filesystem=self._fs, destination_filesystem=self._fs
        )
        self._delete(self._new)

    def _delete(self, folder: str) -> None:
        if self._fs.get_file_info(folder).type is not FileType.NotFound:
            self._fs.delete_dir(folder)


def _beside(folder: str, word: str) -> str:
    parent, _, name = folder.rpartition("/")
    return f"{parent}/.{name}.{word}"


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
    return InvalidSetting(f"{folder} is a file; name a folder for the report")


def _something_else(folder: str) -> ConfigurationError:
    return InvalidSetting(
        f"{folder} is not empty and holds no report ({MARK} is missing); "
        "name another folder, or empty this one"
    )
