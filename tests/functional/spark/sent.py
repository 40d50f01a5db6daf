"""What the stub of SQS was sent, in the words of the tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.support.sqs_stub import Stub
from sqsdelay.core.message import DUE_AT, MESSAGE_ID
from tests.patience import ended
from tests.services.processes import environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def save(rows: DataFrame, **options: Any) -> dict[str, Any]:
    """Send rows by the data source; what it counts."""
    with TemporaryDirectory() as folder:
        given = {"endpoint": "orders", "summary": f"{folder}/summary.json"} | options
        rows.write.format("sqsdelay").options(**given).mode("append").save()
        return dict(json.loads(Path(given["summary"]).read_text()))


def printed(command: Sequence[str], folder: Path, settings: dict[str, str]) -> str:
    """The last line that a command prints."""
    done = ended(command, env=environment(settings), cwd=folder)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()[-1]


def message_id(entry: dict[str, Any]) -> str:
    """A message's id: in the delay queue its group, elsewhere an attribute."""
    carried = entry.get("MessageAttributes", {}).get(MESSAGE_ID, {}).get("StringValue")
    return str(carried or entry["MessageGroupId"])


def due_ms(entry: dict[str, Any]) -> int:
    """The due time that a message in the delay queue carries."""
    return int(entry["MessageAttributes"][DUE_AT]["StringValue"])


def ids(sqs: Stub) -> Counter[str]:
    """How often each message was sent."""
    return Counter(message_id(entry) for entry in sqs.kept())
