"""What pyproject.toml cannot say: a wheel's archive of the functions, a description with absolute links."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from sqsdelay.cdk.function_code import ARCHIVE, built_archive  # noqa: E402


class BuildWithArchive(build_py):
    """An editable installation has the sources: there the archive would only grow old."""

    def run(self) -> None:
        """Copy the modules, then the archive if `make` has built it: nothing is fetched here."""
        super().run()
        archive = built_archive()
        if archive.exists() and not self.editable_mode:
            shutil.copyfile(archive, Path(self.build_lib) / ARCHIVE)


def description() -> str:
    """README.md as an index shows it, which knows no files beside it."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    main = project["urls"]["Repository"]
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{main}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\1{main}/blob/main/", text)


setup(
    cmdclass={"build_py": BuildWithArchive},
    long_description=description(),
    long_description_content_type="text/markdown",
)
