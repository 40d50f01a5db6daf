"""What `make test` keeps in one process, and begins with."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

from tests.scheduling import ALONE, FIRST, TOGETHER, FilesAndFolders, arrange, scope
from tests.services.processes import ROOT


def test_a_folder_that_shares_something_costly_is_one_piece() -> None:
    """Any other test stays with its file, and so does one that shares nothing with its folder."""
    assert scope("tests/infra/test_app.py::test_app_is_thin") == "tests/infra/"
    assert scope(f"{ALONE[0]}::test_it") == ALONE[0]
    assert scope("tests/unit/test_delay.py::test_a[b::c]") == "tests/unit/test_delay.py"


def test_each_such_folder_exists() -> None:
    """A folder that moved would silently be torn apart, and a file would stay with the others."""
    assert [file for file in ALONE if not (ROOT / file).exists()] == []
    assert [folder for folder in TOGETHER if not list((ROOT / folder).glob("test_*.py"))] == []


def test_the_longest_come_first_and_apart() -> None:
    """However late they are collected: else one process ends long after the others."""
    tests = [f"tests/{name}::test_it[{n}]" for name in "abcd" for n in range(3)]
    tests += [f"{folder}test_a.py::test_it[{n}]" for folder in reversed(TOGETHER) for n in range(3)]
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen"] * len(FIRST), option=SimpleNamespace(loadscopereorder=False)
    )
    scheduler = FilesAndFolders(config)
    begun: list[str] = []

    class Node:
        shutting_down = False
        gateway = SimpleNamespace(id="gw")

        def send_runtest_some(self, indices: list[int]) -> None:
            begun.append(scope(tests[indices[0]]))

    nodes: list[Any] = [Node() for _ in FIRST]
    for each in nodes:
        scheduler.add_node(each)
        scheduler.add_node_collection(each, tests)
    scheduler.schedule()
    assert begun == list(FIRST)
    for done in list(scheduler.assigned_work[nodes[0]][FIRST[0]]):
        scheduler.mark_test_complete(nodes[0], tests.index(done))
    assert begun[len(FIRST)] == scope(tests[0])


def test_a_seed_shuffles_and_tears_nothing_apart() -> None:
    """A file's tests stay together, in the order they also have when they run without the others. What ends
    what they share comes last."""
    names = [f"tests/unit/test_{file}.py::test_{n}" for file in "abcd" for n in range(9)]

    def shuffled(seed: str | None, names: list[str]) -> list[str]:
        items: list[Any] = [
            SimpleNamespace(
                nodeid=name, get_closest_marker=lambda _, name=name: name if "0" in name else None
            )
            for name in names
        ]
        arrange(items, seed)
        return [item.nodeid for item in items]

    order = shuffled("7", names)
    assert sorted(order) == names != order
    assert [scope(name) for name in shuffled("8", names)] != [scope(name) for name in order]
    assert len([file for file, _ in groupby(order, scope)]) == 4
    assert all(order[n].endswith("test_0") for n in (8, 17, 26, 35))
    assert shuffled(None, names[:9]) == [*names[1:9], names[0]]
    assert shuffled("7", names[3:15]) == [name for name in order if name in names[3:15]]
