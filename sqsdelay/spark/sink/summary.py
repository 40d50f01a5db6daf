"""What a task did, and what all of a job's tasks did together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from sqsdelay.errors import SqsDelayError
from sqsdelay.spark.locations import opened

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage as _Message

    from sqsdelay.sending.sender import SendResult
    from sqsdelay.spark.sink.run import Staged
else:
    try:
        from pyspark.sql.datasource import WriterCommitMessage as _Message
    except ImportError:  # Spark 3.5 has no Python data sources: `sqsdelay.spark.send` sends there.
        _Message = object

NUMBERS: Final = ("repeated", "already_sent", "throttled", "retried")
"""What is counted besides rows sent and rejected."""


_EXAMPLES_CHARS: Final = 200
"""Of all examples in a task's report. Spark gathers the reports of all tasks in the driver, and ends a job
when they come to more than ``spark.driver.maxResultSize``, after everything was sent."""


@dataclass(kw_only=True)
class Counts:
    """Rows sent, per route, and rows that could not be, per kind of error with one example.

    ``repeated``: rows whose id an earlier row had. ``already_sent``: rows that receipts of an earlier
    run show as sent. ``throttled``: calls that SQS refused for their rate. ``retried``: rows that were
    not taken and sent again. Of a plan: ``costs`` of each way, None where some messages are too large for
    it, and how many are ``relayed``.
    """

    routes: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    already_sent: int = 0
    throttled: int = 0
    retried: int = 0
    relayed: int = 0
    costs: dict[str, Fraction | None] = field(default_factory=dict)
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
        for way, cost in other.costs.items():
            before = self.costs.get(way, Fraction(0))
            self.costs[way] = None if cost is None or before is None else before + cost
        for name in (*NUMBERS, "relayed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def reported(self) -> Counts:
        """What the driver is told: examples share `_EXAMPLES_CHARS`, whatever was rejected."""
        most = _EXAMPLES_CHARS // max(1, len(self.examples))
        short = {kind: _cut(text, most) for kind, text in self.examples.items()}
        return replace(self, examples=short)

    def why(self) -> str:
        """The kinds of errors, the most frequent first, each with an example."""
        return "; ".join(
            f"{number} {kind}, e.g. {self.examples[kind]}"
            for kind, number in self.reasons.most_common()
        )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass
class TaskReport(_Message):
    """What a task tells the driver once all its rows are dealt with: below 1 kB, whatever it sent."""

    write_id: str
    counts: Counts
    part: str | None
    staged: tuple[Staged, ...] = ()
    receipts: str | None = None


def total(reports: Sequence[TaskReport | None]) -> Counts:
    """All tasks' counts together; None stands for a task that failed."""
    counts = Counts()
    for report in reports:
        if report is not None:
            counts.add(report.counts)
    return counts


def write_summary(
    path: str,
    reports: Sequence[TaskReport | None],
    *,
    committed: bool,
    told: Mapping[str, Any],
) -> None:
    """Leave the job's counts in a JSON file: Spark commits in a process of its own."""
    summary: dict[str, Any] = {
        "committed": committed,
        "tasks": len(reports),
        "tasks_failed": sum(report is None for report in reports),
        **told,
    }
    system, file = opened(path, "summary")
    system.create_dir(file.rpartition("/")[0])
    with system.open_output_stream(file) as stream:
        stream.write(json.dumps(summary, ensure_ascii=False, indent=2).encode() + b"\n")


def counted(counts: Counts) -> dict[str, Any]:
    """The counts as JSON has them."""
    return {
        "sent": counts.sent,
        "rejected": counts.rejected,
        **{name: getattr(counts, name) for name in NUMBERS},
        "routes": dict(counts.routes),
        "reasons": {
            kind: {"rows": rows, "example": counts.examples[kind]}
            for kind, rows in counts.reasons.most_common()
        },
    }
