"""The documentation's store of one's own keeps the contract, and works with the dispatcher."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from sqsdelay.dispatching.dispatcher import Dispatcher
from sqsdelay.testing import InMemoryOutbox, ManualClock
from sqsdelay.testing.store_contract import MakeStore, StoreContract, message


def documented() -> ModuleType:
    spec = spec_from_file_location(
        "custom_store", Path(__file__).parents[2] / "docs/custom_store.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestCustomStore(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        store = documented().JsonFileStore
        return lambda clock: store(tmp_path / "messages.json", clock=clock)


def test_a_dispatcher_empties_it(tmp_path: Path) -> None:
    """The protocol is all that the dispatcher needs."""
    clock = ManualClock()
    store = documented().JsonFileStore(tmp_path / "messages.json", clock=clock)
    store.set_up()
    store.store([message("a", clock.now_ms()), message("b", clock.now_ms() + 1)])
    outbox = InMemoryOutbox(clock)
    dispatcher = Dispatcher(store, outbox, clock=clock)
    dispatcher.start()
    assert len(dispatcher.dispatch().released) == 1
    assert [m.message_id for m in outbox.sent] == ["a"]
