"""docs/testing.md does what it says; tests/contract runs its contracts on its store and its broker."""

from __future__ import annotations

import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.dispatching import Outbox
from sqsdelay.testing import OutboxContract, StoreContract
from tests.guides.page import ROOT
from tests.patience import PATIENCE_SECONDS, ended

NAMES = re.compile(r"^def (test_\w+)", re.MULTILINE)
GUIDE = (ROOT / "docs/testing.md").read_text()
*THEIR_TESTS, STORE_TEST, BROKER, BROKER_TEST = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_guides_tests_pass(tmp_path: Path) -> None:
    """Every block, as written, in one file: pytest knows the fixture."""
    (tmp_path / "test_reminders.py").write_text("\n".join(THEIR_TESTS))
    done = ended(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    names = NAMES.findall("\n".join(THEIR_TESTS))
    assert len(names) == 4
    for name in names:
        assert f"{name} PASSED" in done.stdout


def test_its_broker_delivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent with a delay, a message is in its folder once it is due."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs")
    for queue in ("orders", "errors"):
        (tmp_path / queue).mkdir()
    names: dict[str, Any] = {"root": tmp_path}
    exec(BROKER, names)
    store, deadline = names["store"], time.monotonic() + PATIENCE_SECONDS
    (waiting,) = store.pending(10)
    assert list((tmp_path / "orders").iterdir()) == []
    store.reschedule(waiting.message_id, names["outbox"].now_ms())
    while not list((tmp_path / "orders").glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    names["delivery"].stop()
    (file,) = (tmp_path / "orders").glob("*.json")
    assert "pack it" in file.read_text()


@pytest.mark.parametrize(
    ("block", "contract", "fixtures"),
    [(STORE_TEST, StoreContract, {"make_store"}),
     (BROKER_TEST, OutboxContract, {"outbox", "received", "rejected"})],
)  # fmt: skip
def test_its_contract_is_the_shipped_one(
    block: str, contract: type, fixtures: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's test class overrides the fixtures that the contract leaves open."""
    application = types.ModuleType("my_application")
    vars(application).update(MyStore=object, MyOutbox=object, take_all=list)
    monkeypatch.setitem(sys.modules, "my_application", application)
    names: dict[str, Any] = {}
    exec(block, names)
    (mine,) = [each for name, each in names.items() if name.startswith("TestMy")]
    assert issubclass(mine, contract)
    assert fixtures <= set(vars(mine))


def test_it_lists_the_outboxes_members() -> None:
    """All of them."""
    listed = set(re.findall(r"^\| `(\w+)", GUIDE.partition("### The outbox")[2], re.MULTILINE))
    assert listed == {name for name in vars(Outbox) if name[0] != "_"}
