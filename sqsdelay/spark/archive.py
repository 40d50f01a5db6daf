"""sqsdelay as one file for ``spark-submit --py-files``: ``python -m sqsdelay.spark.archive sqsdelay.zip``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("sqsdelay", "pyspark_sqsdelay")
_HOME: Final = Path(__file__).parents[2]
"""The folder that holds both: ``site-packages``, or a checkout."""


def archive(path: str | Path) -> Path:
    """Write a zip file of sqsdelay, without what it depends on, and return its path.

    Executors need boto3, tenacity and pyarrow installed besides. A package ``pyspark_sqsdelay`` is
    part of it, by which Spark finds the data source without `sqsdelay.spark.register`.
    """
    target = Path(path)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            for source in sorted((_HOME / package).rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    file.write(source, source.relative_to(_HOME).as_posix())
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m sqsdelay.spark.archive FILE.zip")
    archive(sys.argv[1])
