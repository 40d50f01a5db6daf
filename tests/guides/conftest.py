"""A reader of pages, in an account that is empty before a page and after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sqsdelay.testing.local_aws import LocalAws
from tests.guides.reader import Reader, empty


@pytest.fixture
def reader(
    local_aws: LocalAws,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Reader]:
    reader = Reader(local_aws, tmp_path, monkeypatch, capsys)
    try:
        yield reader
    finally:
        reader.end()
        empty(local_aws)
