"""The benchmark runs and cleans up. Speed is never asserted."""

from __future__ import annotations

import re
import subprocess
import sys

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import ROOT


def test_the_benchmark_prints_both_and_leaves_nothing(broker: Broker) -> None:
    """A small run: rates, ratios and lateness of both, nobody early, and the verdict as exit code."""
    sizes = ["--messages", "500", "--peer-messages", "100", "--rounds", "1", "--longest", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rabbitmq", "--url", broker.url, *sizes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == int("aims missed" in done.stdout), done.stderr
    assert re.search(r"ratio \d+\.\d \(aim: 8\); of the entry level alone \d+\.\d", done.stdout)
    figures = re.findall(
        r"^  (?:sqsdelay|kombu) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", done.stdout, re.M
    )
    assert len(figures) == 2
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        for name in ("ours", "kombu", "bench_celery_delayed_27", "sqsdelay-bench.delay-level-27"):
            with pytest.raises(ChannelClosedByBroker, match="no queue"):
                connection.channel().queue_declare(name, passive=True)


def test_the_asyncio_benchmark_prints_all_beside_each_other(broker: Broker) -> None:
    """A small run: a rate for each, the ratios, and the verdict as exit code."""
    program = [sys.executable, "-m", "benchmarks.rabbitmq_async", "--url", broker.url]
    done = subprocess.run(
        [*program, "--messages", "100", "--rounds", "1", "--endpoints", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    ratios = re.findall(r"asyncio against [\w-]+: ([\d.]+) \(aim >= ([\d.]+)\)", done.stdout)
    assert len(ratios) == 2, done.stderr
    assert len(re.findall(r"^  \S.*  +[\d,]+$", done.stdout, re.M)) == 3
    assert done.returncode in (0, 1), done.stderr
