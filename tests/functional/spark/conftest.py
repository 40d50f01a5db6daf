"""One Spark session for all tests of this folder, on two cores, in which a failed task is retried."""

from __future__ import annotations

import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.support.dynalite import running_dynalite
from benchmarks.support.sqs_stub import Stub, running_stub
from sqsdelay.spark.session import session
from tests.services.processes import ROOT
from tests.services.s3_server import S3Server, running_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    # A handful of rows is sooner done than a query is compiled or planned anew.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
QUICK_CONF: Final = [each for name in QUICK for each in ("--conf", f"{name}={QUICK[name]}")]
SETTINGS: Final = QUICK | {"spark.driver.memory": "1g"}
QUICK_JAVA: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For processes that live for seconds: no costly compiling, no threads that collect garbage, no check of
Spark's classes. Together a quarter of what a small job takes. (The folder's session fills the 48 MiB that
a quick compiler has for its code, and ends.)"""


@pytest.fixture(autouse=True, scope="session")
def quick_java() -> Iterator[None]:
    """For every driver of these tests, in whatever process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", QUICK_JAVA)
        yield


@pytest.fixture(scope="session")
def one_stub() -> Iterator[Stub]:
    with running_stub() as stub:
        yield stub


@pytest.fixture(scope="session")
def one_s3() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture(scope="session")
def one_dynamodb() -> Iterator[str]:
    with running_dynalite() as url:
        yield url


@pytest.fixture(scope="session")
def spark(
    own_aws_settings: None, quick_java: None, one_stub: Stub, one_s3: S3Server, one_dynamodb: str
) -> Iterator[SparkSession]:
    """A session whose workers know the stub as SQS: they have the environment it is started in.

    Nobody registers the data source: Spark finds ``pyspark_sqsdelay``, here on Python's path as it
    is in the site-packages of an installed sqsdelay.
    """
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT))
            patch.setenv("AWS_ENDPOINT_URL", one_stub.url)
            patch.setenv("AWS_ENDPOINT_URL_S3", one_s3.url)
            patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", one_dynamodb)
            started = stack.enter_context(session("tests", master="local[2,4]", settings=SETTINGS))
        yield started


@pytest.fixture
def s3(one_s3: S3Server) -> S3Server:
    """An empty bucket."""
    one_s3.reset()
    return one_s3


@pytest.fixture
def sqs(one_stub: Stub) -> Stub:
    """A stub of SQS in which every queue exists, and which keeps what it is sent."""
    one_stub.set_latency(0)
    one_stub.refuse("", calls=0)
    one_stub.keep()
    return one_stub


@pytest.fixture
def python_without_sqsdelay(tmp_path: Path) -> Path:
    """A Python that has what sqsdelay needs, but not sqsdelay: an executor's."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"
