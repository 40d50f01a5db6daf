"""docs/own-broker.md does what it says; tests/contract/test_brokers.py runs its contracts."""

from __future__ import annotations

import re
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from sqsdelay.dispatching import Outbox
from sqsdelay.testing import OutboxContract
from tests.guides.page import ROOT
from tests.patience import PATIENCE_SECONDS

GUIDE = (ROOT / "docs/own-broker.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_its_broker_delivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent with a delay, a message is in its folder once it is due."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs")
    for queue in ("orders", "errors"):
        (tmp_path / queue).mkdir()
    names: dict[str, Any] = {"root": tmp_path}
    exec(BLOCKS[0], names)
    store, deadline = names["store"], time.monotonic() + PATIENCE_SECONDS
    (waiting,) = store.pending(10)
    assert list((tmp_path / "orders").iterdir()) == []
    store.reschedule(waiting.message_id, names["outbox"].now_ms())
    while not list((tmp_path / "orders").glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    names["delivery"].stop()
    (file,) = (tmp_path / "orders").glob("*.json")
    assert "pack it" in file.read_text()


def test_its_contract_is_the_shipped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's test class overrides the fixtures that the contract leaves open."""
    application = types.ModuleType("my_application")
    vars(application).update(MyOutbox=object, take_all=list)
    monkeypatch.setitem(sys.modules, "my_application", application)
    names: dict[str, Any] = {}
    exec(BLOCKS[1], names)
    mine = names["TestMyOutbox"]
    assert issubclass(mine, OutboxContract)
    assert {"outbox", "received", "rejected"} <= set(vars(mine))


def test_it_lists_the_outboxes_members() -> None:
    """All of them."""
    listed = set(re.findall(r"^\| `(\w+)", GUIDE, re.MULTILINE))
    assert listed == {name for name in vars(Outbox) if name[0] != "_"}
