"""sqsdelay as one file for ``spark-submit --py-files``: ``python -m sqsdelay.spark.archive sqsdelay.zip``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

import tenacity

_PACKAGES: Final = (Path(__file__).parents[1], Path(tenacity.__file__).parent)


def archive(path: str | Path) -> Path:
    """Write a zip file of sqsdelay and of tenacity, which few clusters have, and return its path. boto3 and
    pyarrow cannot be imported from a zip file: executors need them besides."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            for source in sorted(package.rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    file.write(source, source.relative_to(package.parent).as_posix())
    return Path(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m sqsdelay.spark.archive FILE.zip")
    archive(sys.argv[1])
