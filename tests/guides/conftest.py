"""A local AWS of the guides' own: each page begins with an empty account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqsdelay.testing.local_aws import LocalAws
from tests.guides.reader import Reader, reading


@pytest.fixture(scope="package")
def guides_aws() -> Iterator[LocalAws]:
    """A local AWS that is emptied for each page."""
    with LocalAws() as aws:
        yield aws


@pytest.fixture
def reader(
    guides_aws: LocalAws,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Reader]:
    with reading(guides_aws, tmp_path, monkeypatch, capsys) as reader:
        yield reader
