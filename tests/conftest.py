"""What all tests share: property tests are repeatable, and no test reads the machine's AWS settings."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from sqsdelay.testing import InMemoryStore, LocalAws, ManualClock
from tests.faulty import FaultyQueues
from tests.services.quick_aws import quicken_botocore, quicken_moto

if TYPE_CHECKING:
    from tests.acceptance.rabbitmq.broker import Broker

for size in ("COLUMNS", "LINES"):
    # A test runner's own notion of a terminal; a console would keep it for good when it is made.
    os.environ.pop(size, None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell starts what it runs in the background; the commands under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

quicken_botocore()
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "by day", max_examples=20, derandomize=True, deadline=None, print_blob=True
)
settings.register_profile("long", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile("repeatable")  # --hypothesis-profile=long looks for new ways to fail


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", help="shuffle folders, files and tests by this (make test SEED=7)")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('seed')}"


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "not nightly" and not config.getoption("--hypothesis-profile"):
        from sqsdelay.testing.store_contract import StoreContract

        settings.load_profile("by day")
        StoreContract.contended = 40


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each of several processes collects all tests. It imports a share of its own first: the others find
    that compiled, or in a fresh clone each would compile everything."""
    given = getattr(session.config, "workerinput", None)
    if given is not None:
        folder = Path(__file__).parent
        files = sorted(folder.rglob("test_*.py"))
        for file in files[int(given["workerid"][2:]) :: given["workercount"]]:
            # What cannot be imported is told by the collection.
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(file.relative_to(folder.parent).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from tests.scheduling import arrange

    arrange(items, config.getoption("seed"))


def pytest_collection_finish() -> None:
    if "moto" in sys.modules:
        quicken_moto()
    gc.freeze()  # A million objects of imports are not looked through at each collection of garbage.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if hasattr(item.config, "workerinput"):
        from tests.scheduling import step_back

        step_back(item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`make test` runs several processes."""
    from tests.scheduling import FilesAndFolders

    return FilesAndFolders(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def own_aws_settings() -> Iterator[None]:
    """Test keys and a region, whatever the machine has; nothing reaches a real account."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in kept:
        del os.environ[name]
    os.environ.update(
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        AWS_EC2_METADATA_DISABLED="true",
    )
    yield
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(kept)


_FOR_GOOD = ("PYTEST_CURRENT_TEST",)
"""What pytest changes at each test."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """What the tests of a process share is as it was: whatever comes next, in any order, finds it so."""
    before = _shared()
    yield
    assert _shared() == before


def _shared() -> dict[str, Any]:
    ours = logging.getLogger("sqsdelay")
    return {
        "environment": {k: v for k, v in os.environ.items() if k not in _FOR_GOOD},
        "directory": os.getcwd(),
        "sys.path": list(sys.path),
        "logging": (logging.root.level, logging.root.manager.disable, ours.level, *ours.handlers),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
    }


@pytest.fixture
def clock() -> ManualClock:
    """Virtual time; a file that begins at another has a fixture of its own."""
    return ManualClock()


@pytest.fixture
def queues(clock: ManualClock) -> FaultyQueues:
    """An endpoint in memory; a file whose endpoint is another has fixtures of its own."""
    queues = FaultyQueues(clock)
    queues.create_endpoint("orders")
    return queues


@pytest.fixture
def store(clock: ManualClock) -> InMemoryStore:
    return InMemoryStore(clock)


@pytest.fixture(scope="session")
def local_aws() -> Iterator[LocalAws]:
    """A local AWS for the whole session; tests use names of their own."""
    with LocalAws() as aws:
        yield aws


@pytest.fixture
def aws_here(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> LocalAws:
    """This process's AWS is the local one."""
    for name, value in local_aws.environment().items():
        monkeypatch.setenv(name, value)
    return local_aws


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A connection string of a real PostgreSQL, the one of ``SQSDELAY_TEST_POSTGRES``, or a database of this
    process on the run's own; tests use tables of their own."""
    from tests.services.postgres import VARIABLE, database
    from tests.services.shared import shared

    if given := os.environ.get(VARIABLE):
        yield given
        return
    with shared("postgresql", tmp_path_factory) as (url,), database(url) as own:
        yield own


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that ``SQSDELAY_TEST_RABBITMQ`` names, or the run's own."""
    from tests.acceptance.rabbitmq.broker import Broker
    from tests.services.shared import shared

    given = os.environ.get("SQSDELAY_TEST_RABBITMQ")
    if given is not None:
        yield Broker(given, os.environ["SQSDELAY_TEST_RABBITMQ_MANAGEMENT"])
        return
    with shared("rabbitmq", tmp_path_factory) as urls:
        yield Broker(*urls)


@pytest.fixture
def broker(node: Broker, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A virtual host of the test's own."""
    from tests.acceptance.rabbitmq.broker import own_virtual_host

    name = f"sqsdelay-test {request.node.nodeid}"
    with own_virtual_host(node.url, node.management_url, name) as broker:
        yield broker


@pytest.fixture(scope="session")
def _levels(node: Broker) -> Iterator[Broker]:
    from tests.acceptance.rabbitmq.broker import own_virtual_host

    name = f"sqsdelay-test levels {os.getpid()}"
    with own_virtual_host(node.url, node.management_url, name) as broker:
        yield broker


@pytest.fixture
def shared(_levels: Broker) -> Iterator[Broker]:
    """This process's virtual host, where levels stay declared (28 queues: a second of a processor): for a
    test that ends with nothing on its way."""
    yield _levels
    _levels.clear()
