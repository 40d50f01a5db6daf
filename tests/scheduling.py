"""Which tests one of several processes runs in one go, which come first, and the order of a seed."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.workermanage import WorkerController

FIRST: Final = (
    "tests/functional/spark/report/",
    "tests/functional/spark/",
    "tests/acceptance/deployed/",
)
"""Folders of minutes, the longest first; one within another before that."""

TOGETHER: Final = (*FIRST, "tests/acceptance/iam/", "tests/infra/")
"""Folders whose tests share what is slow to start: a Spark session, an account, the CDK."""

ALONE: Final = (
    "tests/functional/spark/test_older_spark.py",
    "tests/functional/spark/test_cluster.py",
)
"""Files of these folders that start processes of their own and share nothing."""


CDK: Final = (
    "tests/acceptance/deployed/",
    "tests/acceptance/iam/",
    "tests/infra/",
    "tests/functional/test_packaging.py",
)
"""What needs the CDK in the tests' own process, which takes ten seconds of a processor to load it."""


class FilesAndFolders(LoadScopeScheduling):
    """A file's tests stay together, and so do those of a folder that shares a costly fixture.

    The longest folders first; then in the order of collection (``--no-loadscope-reorder``), acceptance tests
    first and unit tests last: so that no process is left alone with something long, and not all that is
    heavy starts at once. Whoever has the CDK goes on with it, and others leave it to him while they can.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        has_cdk = not self.assigned_work.get(node, {}).keys().isdisjoint(CDK)
        fitting = (each for each in self.workqueue if (each in CDK) == has_cdk)
        first = next((each for each in FIRST if each in self.workqueue), next(fitting, None))
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def scope(nodeid: str) -> str:
    """The folder, or the file, that a test stays together with."""
    file = nodeid.partition("::")[0]
    if file in ALONE:
        return file
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def step_back(nodeid: str) -> None:
    """Leave the processors to the longest folders, which would be the last to end."""
    if scope(nodeid) not in FIRST and os.getpriority(os.PRIO_PROCESS, 0) == 0:
        os.nice(5)


def arrange(items: list[pytest.Item], seed: str | None) -> None:
    """Put what stays together, its files and their tests in an order of the seed's; without one they stay
    as they are. Tests that are marked ``last`` come last in their file.

    Each name has a place of its own by the seed, so a part of the tests keeps the order of the whole.
    """
    files = {item.nodeid.partition("::")[0]: None for item in items}
    collected = {file: number for number, file in enumerate(files)}

    def place(name: str) -> float:
        return Random(f"{seed} {name}").random() if seed is not None else 0.0

    def order(item: pytest.Item) -> tuple[float | bool, ...]:
        file = item.nodeid.partition("::")[0]
        last = item.get_closest_marker("last") is not None
        return place(scope(file)), place(file), collected[file], last, place(item.nodeid)

    items.sort(key=order)
