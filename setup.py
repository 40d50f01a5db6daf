"""Puts the functions' archive into a wheel; everything else is in pyproject.toml."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from sqsdelay.cdk.function_code import ARCHIVE, functions_archive


class BuildWithArchive(build_py):
    """An editable installation has the sources: there the archive would only grow old."""

    def run(self) -> None:
        """Copy the modules, then build what is deployed."""
        super().run()
        if not self.editable_mode:
            shutil.copyfile(functions_archive(), Path(self.build_lib) / ARCHIVE)


setup(cmdclass={"build_py": BuildWithArchive})
