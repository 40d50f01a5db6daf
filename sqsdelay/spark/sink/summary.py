"""What a task did, and what all of a job's tasks did together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from sqsdelay.errors import SqsDelayError
from sqsdelay.sending.sender import SendResult
from sqsdelay.spark.locations import opened
from sqsdelay.spark.sink.rejects import Part


@dataclass(kw_only=True)
class Counts:
    """Rows sent, per route, and rows that could not be, per kind of error with one example."""

    routes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        return self.routes.total()

    @property
    def rejected(self) -> int:
        return self.reasons.total()

    def count_sent(self, result: SendResult) -> None:
        self.routes[str(result.route)] += 1

    def count_rejected(self, error: SqsDelayError) -> None:
        kind = type(error).__name__
        self.reasons[kind] += 1
        self.examples.setdefault(kind, str(error))

    def add(self, other: Counts) -> None:
        self.routes.update(other.routes)
        self.reasons.update(other.reasons)
        self.examples = other.examples | self.examples

    def why(self) -> str:
        """The kinds of errors, the most frequent first, each with an example."""
        return "; ".join(
            f"{number} {kind}, e.g. {self.examples[kind]}"
            for kind, number in self.reasons.most_common()
        )


@dataclass
class TaskReport(WriterCommitMessage):
    """What a task tells the driver once all its rows are dealt with."""

    write_id: str
    counts: Counts
    part: Part | None


def total(reports: Iterable[TaskReport | None]) -> Counts:
    """All tasks' counts together; None stands for a task that failed."""
    counts = Counts()
    for report in reports:
        if report is not None:
            counts.add(report.counts)
    return counts


def write_summary(path: str, reports: Sequence[TaskReport | None], *, committed: bool) -> None:
    """Leave the job's counts in a JSON file: Spark commits in a process of its own."""
    counts = total(reports)
    summary: dict[str, Any] = {
        "committed": committed,
        "tasks": len(reports),
        "tasks_failed": sum(report is None for report in reports),
        "sent": counts.sent,
        "rejected": counts.rejected,
        "routes": dict(counts.routes),
        "reasons": {
            kind: {"rows": rows, "example": counts.examples[kind]}
            for kind, rows in counts.reasons.most_common()
        },
    }
    system, file = opened(path, "summary")
    system.create_dir(file.rpartition("/")[0])
    with system.open_output_stream(file) as stream:
        stream.write(json.dumps(summary, ensure_ascii=False, indent=2).encode() + b"\n")
