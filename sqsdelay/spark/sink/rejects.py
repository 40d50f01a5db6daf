"""Rows that cannot be sent, kept with the reason: a folder of Parquet files.

Each attempt on a task writes a file of its own under a hidden folder. Only the files of attempts
that Spark committed are moved out of it, so a task that ran twice does not reject its rows twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from sqsdelay.errors import InvalidSetting
from sqsdelay.spark.locations import opened
from sqsdelay.spark.sink.options import REASON

_STAGING: Final = "_staging-"
_AT_A_TIME: Final = 16
"""Files that are moved at a time: of a store of objects each takes some requests."""


class RejectsFolder:
    """The rejects table at ``path``: a local path, or a URI that pyarrow's file systems know. Raises
    ConfigurationError."""

    def __init__(self, path: str) -> None:
        self._fs, self._root = opened(path, "rejects")

    def create(self) -> None:
        """Make the folder; raises ConfigurationError if that cannot be done."""
        try:
            self._fs.create_dir(self._root)
        except OSError as error:
            raise InvalidSetting(f"option rejects={self._root!r}: {error}") from error

    def staging(self, write_id: str) -> str:
        """The hidden folder of one write; Spark's readers pass over a name that starts with '_'."""
        return f"{self._root}/{_STAGING}{write_id}"

    def part(self, write_id: str, partition: int, attempt: int) -> str:
        """Where one attempt on one task writes its file, below the folder."""
        return f"{_STAGING}{write_id}/{partition:05d}-{attempt}.parquet"

    def open(self, part: str, schema: pa.Schema) -> pq.ParquetWriter:
        """Begin a part; close it when the task is done."""
        path = f"{self._root}/{part}"
        self._fs.create_dir(path.rpartition("/")[0])
        return pq.ParquetWriter(path, schema, filesystem=self._fs)

    def commit(self, parts: Iterable[str], write_ids: Iterable[str]) -> None:
        """Make the parts visible, and drop what other attempts left: a write that is run again need not
        have the same tasks."""
        at, kept = self._root, {_committed(part): part for part in parts}
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            list(pool.map(lambda name: self._fs.move(f"{at}/{kept[name]}", f"{at}/{name}"), kept))
        ids = set(write_ids)
        for info in self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
            if info.base_name not in kept and _write_of(info.base_name) in ids:
                self._fs.delete_file(info.path)
        self.drop(ids)

    def drop(self, write_ids: Iterable[str]) -> None:
        """Delete all that is not committed."""
        for write_id in set(write_ids):
            staging = self.staging(write_id)
            if self._fs.get_file_info(staging).type is not fs.FileType.NotFound:
                self._fs.delete_dir(staging)


def _committed(part: str) -> str:
    """The name of an attempt's file once it is committed."""
    write_id, _, file = part.removeprefix(_STAGING).rpartition("/")
    return f"part-{write_id}-{file.partition('-')[0]}.parquet"


def _write_of(name: str) -> str:
    """The write that a part belongs to, by its name."""
    return name.removeprefix("part-").rpartition("-")[0]


def rejected(rows: pa.RecordBatch, positions: Sequence[int], reasons: Sequence[str]) -> Any:
    """The rows at these positions, each with its reason."""
    taken = rows.take(pa.array(positions, pa.int64()))
    schema = rows.schema.append(pa.field(REASON, pa.string(), nullable=False))
    return pa.RecordBatch.from_arrays(
        [*taken.columns, pa.array(reasons, pa.string())], schema=schema
    )
