"""sqsdelay as one file for ``spark-submit --py-files``: ``python -m sqsdelay.spark.archive sqsdelay.zip``."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[1]


def archive(path: str | Path) -> Path:
    """Write a zip file of sqsdelay, without what it depends on, and return its path.

    Executors need boto3, tenacity and pyarrow installed besides.
    """
    target = Path(path)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for source in sorted(_PACKAGE.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                file.write(source, source.relative_to(_PACKAGE.parent).as_posix())
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m sqsdelay.spark.archive FILE.zip")
    archive(sys.argv[1])
