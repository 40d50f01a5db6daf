"""What `import sqsdelay` gives, and what it does not do."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sqsdelay
from tests.approved.doors import DOORS
from tests.patience import PATIENCE_SECONDS


def test_all_public_names_exist() -> None:
    """`__all__` and the lazy attributes agree."""
    assert {name: getattr(sqsdelay, name).__name__ for name in sqsdelay.__all__} == {
        name: name for name in sqsdelay.__all__
    }
    assert sorted(sqsdelay._HOMES) == sorted(sqsdelay.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = sqsdelay.Nope


def test_importing_does_nothing() -> None:
    """No client, no environment, no boto3 until it is used."""
    program = (
        "import sys, os\n"
        "os.environ.clear()\n"
        "import sqsdelay, sqsdelay.core.message, sqsdelay.sending.sender, sqsdelay.relaying.relay\n"
        "print([m for m in ('boto3', 'botocore', 'typer', 'tenacity') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout.strip() == "[]"


VENDORS = {"boto3", "botocore", "pika", "psycopg", "kombu", "pyspark", "pyarrow", "typer", "pytest"}
NEEDED = {
    "sqsdelay.celery": {"boto3", "botocore", "kombu"},
    "sqsdelay.ledger.firehose": {"boto3", "botocore"},
    "sqsdelay.s3": {"boto3", "botocore"},
    "sqsdelay.sqs": {"boto3", "botocore"},
}
"""What stands behind a door at once; everything else is imported by the first name that needs it."""


@pytest.mark.parametrize("door", DOORS)
def test_a_door_imports_no_vendor_but_its_own(door: str) -> None:
    """A receiver's or a RabbitMQ user's process does not pay for boto3, nor anyone's for Spark."""
    program = f"import sys, {door}; print(*sorted({VENDORS} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert set(done.stdout.split()) <= NEEDED.get(door, set())
