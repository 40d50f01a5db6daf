"""Which tests one of several processes runs in one go, and which come first."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = (
    "tests/acceptance/deployed/",
    "tests/acceptance/rabbitmq/",
    "tests/functional/spark/",
    "tests/infra/",
)
"""Folders whose tests share what is slow to start: an account, a broker, a Spark session, the CDK."""


class FilesAndFolders(LoadScopeScheduling):
    """A file's tests stay together, and so do those of a folder that shares a costly fixture.

    In the order of collection (``--no-loadscope-reorder``): acceptance tests first and unit tests last,
    so that no process is left alone with something long.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """The folder, or the file, that a test stays together with."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)
