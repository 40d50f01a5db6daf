"""Puts the functions' archives into a wheel; everything else is in pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from sqsdelay.lambdas.function_code import ARCHIVES, write_archives


class BuildWithArchives(build_py):
    """An editable installation has the sources: there the archives would only grow old."""

    def run(self) -> None:
        """Copy the modules, then build what is deployed."""
        super().run()
        if not self.editable_mode:
            write_archives(Path(self.build_lib) / ARCHIVES)


setup(cmdclass={"build_py": BuildWithArchives})
