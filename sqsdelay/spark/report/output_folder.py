"""The folder of a report: numbered folders of tables, a page, and one file that points to the newest tables.

Tables are written beside those of the report before, whose page and pointer are replaced when all else is
there: nothing is renamed, which stores of objects cannot do. A report that fails leaves the other as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyarrow.fs import FileSelector, FileType

from sqsdelay.errors import ConfigurationError, InvalidSetting
from sqsdelay.spark.locations import absolute, hadoop_uri, is_uri, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK: Final = "report.json"
"""The pointer, by which a report's folder is known: its ``tables`` names the folder that counts."""

PAGE: Final = "report.html"
_TABLES: Final = re.compile(r"tables-(\d+)")


def check_replaceable(folder: str) -> None:
    """Refuse a folder of this machine that holds something else than a report.

    What another file system holds is looked at when Spark runs.

    Raises:
        ConfigurationError: it is a file, or a folder that no report made.
    """
    path = Path(absolute(folder))
    if not is_uri(folder) and path.exists():
        _check(folder, None if path.is_file() else [each.name for each in path.iterdir()])


def _check(folder: str, names: list[str] | None) -> None:
    if names is None:
        raise InvalidSetting(f"{folder} is a file; name a folder for the report")
    if MARK not in names and not all(_TABLES.fullmatch(name) for name in names):
        raise InvalidSetting(
            f"{folder} is not empty and holds no report ({MARK} is missing); "
            "name another folder, or empty this one"
        )


class NewReport:
    """A report that is being written."""

    def __init__(self, files: _ByArrow | _ByHadoop, folder: str) -> None:
        self._files = files
        self._folder = folder
        names = files.names()
        _check(folder, names)
        numbers = [int(known[1]) for known in map(_TABLES.fullmatch, names or ()) if known]
        self._tables = f"tables-{max(numbers, default=0) + 1}"
        try:
            files.make(self._tables)
        except OSError as error:
            told = error.strerror or " ".join(str(error).split())
            raise ConfigurationError(f"{folder} cannot be written: {told}") from error

    def uri(self, name: str) -> str:
        """Where Spark reads and writes a table."""
        return f"{self._files.uri}/{self._tables}/{name}"

    def remove(self, name: str) -> None:
        """Remove a table."""
        self._files.delete(f"{self._tables}/{name}")

    def publish(self, page: str, figures: Mapping[str, Any]) -> None:
        """Let this report take the place of the one before, and delete what that has left.

        Raises:
            ConfigurationError: the tables are not where the page would be.
        """
        if not self._files.names(self._tables):
            raise ConfigurationError(
                f"{self._folder} is another folder to Spark's server, which writes the tables, than to this "
                "process, which writes the page; give --out a URI that both reach"
            )
        pointer = json.dumps({"tables": self._tables, **figures}, indent=2) + "\n"
        self._files.write(PAGE, page.encode())
        self._files.write(MARK, pointer.encode())
        for name in self._files.names() or ():
            if name not in (PAGE, MARK, self._tables):
                self._files.delete(name)

    def drop(self) -> None:
        """Delete the tables; and the folder, if there was nothing in it."""
        self._files.delete(self._tables)
        with suppress(OSError):
            if not self._files.names():
                self._files.delete("")


@contextmanager
def replaced(spark: SparkSession, folder: str) -> Iterator[NewReport]:
    """A report that is to take the place of the one in ``folder``, and goes if anything fails.

    Raises:
        ConfigurationError: as `check_replaceable`, or it cannot be written.
    """
    by_java = is_uri(folder) and getattr(spark, "_jsc", None) is not None
    begun = NewReport((_ByHadoop if by_java else _ByArrow)(spark, folder), folder)
    try:
        yield begun
    except BaseException:
        begun.drop()
        raise


class _ByArrow:
    """A folder of this machine; over Spark Connect wherever its server and this process reach. ``uri`` is
    what Spark calls it."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.uri = hadoop_uri(spark, folder, "--out").rstrip("/")
        self._fs, self._root = opened(folder, "--out")

    def names(self, within: str = "") -> list[str] | None:
        """What is in it or in a folder of it, nothing if that does not exist; None for a file."""
        path = f"{self._root}/{within}".rstrip("/")
        if self._fs.get_file_info(path).type is FileType.File:
            return None
        found = self._fs.get_file_info(FileSelector(path, allow_not_found=True))
        return [each.base_name for each in found]

    def make(self, name: str) -> None:
        self._fs.create_dir(f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        with self._fs.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(content)

    def delete(self, name: str) -> None:
        path = f"{self._root}/{name}".rstrip("/")
        found = self._fs.get_file_info(path).type
        if found is FileType.Directory:
            self._fs.delete_dir(path)
        elif found is FileType.File:
            self._fs.delete_file(path)


class _ByHadoop:
    """The same by the file systems that Spark itself uses: whatever it can write to is good for a report."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.uri = hadoop_uri(spark, folder, "--out").rstrip("/")
        jvm: Any = spark._jvm
        context: Any = spark._jsc
        self._path = jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(self.uri).getFileSystem(context.hadoopConfiguration())

    def names(self, within: str = "") -> list[str] | None:
        path = self._path(f"{self.uri}/{within}".rstrip("/"))
        if not self._fs.exists(path):
            return []
        if self._fs.getFileStatus(path).isFile():
            return None
        return [str(each.getPath().getName()) for each in self._fs.listStatus(path)]

    def make(self, name: str) -> None:
        self._fs.mkdirs(self._path(f"{self.uri}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        stream = self._fs.create(self._path(f"{self.uri}/{name}"), True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        self._fs.delete(self._path(f"{self.uri}/{name}".rstrip("/")), True)
