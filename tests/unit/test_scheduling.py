"""What `make test` keeps in one process."""

from __future__ import annotations

from tests.scheduling import TOGETHER, scope
from tests.services.processes import ROOT


def test_a_folder_that_shares_something_costly_is_one_piece() -> None:
    """Any other test stays with its file."""
    assert scope("tests/infra/test_app.py::test_app_is_thin") == "tests/infra/"
    assert scope("tests/unit/test_delay.py::test_a[b::c]") == "tests/unit/test_delay.py"


def test_each_such_folder_exists() -> None:
    """A folder that moved would silently be torn apart."""
    assert [folder for folder in TOGETHER if not list((ROOT / folder).glob("test_*.py"))] == []
