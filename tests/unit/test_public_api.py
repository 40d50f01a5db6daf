"""What `import sqsdelay` gives, and what it does not do."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sqsdelay
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
        "import sqsdelay, sqsdelay.core.wire, sqsdelay.sending.sender, sqsdelay.relaying.relay\n"
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
