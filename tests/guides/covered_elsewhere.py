"""What of the documentation the guide tests do not run themselves, and who does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Commands of this pattern: why they are not run here, and the test that runs them, if any."""

    pattern: str
    why: str
    test: str | None = None

    def covers(self, command: str) -> bool:
        return re.fullmatch(self.pattern, command) is not None


ELSEWHERE: Final = (
    Elsewhere(
        r"npx cdk (bootstrap|deploy|destroy|diff|import)\b.*",
        "takes minutes in all; run against the local AWS",
        "tests/acceptance/deployed/test_endpoint.py",
    ),
    Elsewhere(
        r"aws (s3 cp|cloudformation deploy) .*|sam deploy .*",
        "needs their command lines; the test deploys the template with boto3",
        "tests/acceptance/deployed/test_templates.py",
    ),
    Elsewhere(
        r"make deploy-local\b.*",
        "runs until it is interrupted",
        "tests/acceptance/test_deploy_local.py",
    ),
    Elsewhere(
        r"sqsdelay console .*",
        "serves until it is stopped, and is asked meanwhile",
        "tests/functional/console/test_processes.py",
    ),
    Elsewhere(
        r"\.venv/bin/sqsdelay prove .*",
        "follows messages through a deployed endpoint",
        "tests/acceptance/deployed/test_endpoint.py",
    ),
    Elsewhere(r"make demo\b.*", "takes half a minute", "tests/acceptance/test_worker.py"),
    Elsewhere(
        r"\.venv/bin/sqsdelay local|export AWS_ENDPOINT_URL=\S+:4566 .*|"
        r"\.venv/bin/sqsdelay (send orders --hop 2 .*|status orders|receive orders --count 1)",
        "as printed by a local AWS that runs until it is interrupted",
        "tests/guides/test_site.py",
    ),
    Elsewhere(
        r"make bench|(\.venv/bin/)?python -m benchmarks\..*",
        "takes minutes; run with less to do",
        "tests/functional/test_benchmarks.py",
    ),
    Elsewhere(
        r"make (setup( setup-node)?|test(-all)?|check|docs)\b.*", "made, or is, this very test run"
    ),
    Elsewhere(r"git pull && make setup.*", "an upgrade needs a newer version"),
    Elsewhere(r"pip install 'sqsdelay\[\w+\]'", "extras are in the environment of this test run"),
    Elsewhere(
        r"make faults\b.*", "takes minutes; run with less to do", "tests/simulation/__init__.py"
    ),
    Elsewhere(
        r"make capacity\b.*",
        "rewrites the page; a test compares its tables",
        "tests/functional/test_capacity.py",
    ),
    Elsewhere(r"make soak\b.*", "takes an hour", "tests/functional/test_benchmarks.py"),
    Elsewhere(
        r"sqsdelay pipeline .*",
        "starts Spark; run in the one session of Spark's tests",
        "tests/functional/spark/test_spark_guide.py",
    ),
    Elsewhere(
        r"rabbitmqctl set_policy .*",
        "needs the broker's own user",
        "tests/acceptance/rabbitmq/test_private_broker.py",
    ),
    Elsewhere(r"rabbitmqctl eval .*", "a cure for a broker that lost power; it cannot be staged"),
)


@dataclass(frozen=True, slots=True)
class WholePage:
    """A page with a test of its own, and how many fenced blocks it has, JSON and drawings among them."""

    blocks: int
    test: str


WHOLE_PAGES: Final = {
    "docs/senders-contract.md": WholePage(9, "tests/acceptance/test_typescript.py"),
    "docs/celery.md": WholePage(10, "tests/guides/test_celery_guide.py"),
    "docs/receiving.md": WholePage(7, "tests/guides/test_receiving_guide.py"),
    "docs/fields.md": WholePage(1, "tests/guides/test_ledger_guide.py"),
    "docs/ledger.md": WholePage(11, "tests/guides/test_ledger_guide.py"),
    "docs/spark.md": WholePage(12, "tests/functional/spark/test_spark_guide.py"),
    "docs/testing.md": WholePage(8, "tests/guides/test_testing_guide.py"),
}
"""Pages that take more than typing: workers of another program, a cluster, or minutes."""


def elsewhere(command: str) -> Elsewhere | None:
    """The entry that covers a command; None for one that is to be run here."""
    bare = re.sub(r"\s+#\s.*", "", command).strip()
    return next((entry for entry in ELSEWHERE if entry.covers(bare)), None)
