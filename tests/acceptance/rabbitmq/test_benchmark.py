"""The benchmark runs and cleans up. Speed is never asserted."""

from __future__ import annotations

import re
import sys

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.acceptance.rabbitmq.broker import Broker
from tests.patience import ended
from tests.services.processes import ROOT


@pytest.mark.nightly
def test_the_benchmark_prints_both_and_leaves_nothing(broker: Broker) -> None:
    """A small run: rates, ratios and lateness of both, nobody early, and the verdict as exit code."""
    sizes = ["--messages", "500", "--peer-messages", "100", "--rounds", "1"]
    sizes += ["--longest", "2", "--endpoints", "1,3"]
    program = [sys.executable, "-m", "benchmarks.rabbitmq", "--url", broker.url, *sizes]
    done = ended(program, cwd=ROOT)
    assert done.returncode == int("aims missed" in done.stdout), done.stderr
    assert re.search(r"ratio \d+\.\d \(aim: 8\); of the entry level alone \d+\.\d", done.stdout)
    told = re.findall(r"to \d queues: .*ratio [\d.]+, of processor time [\d.]+", done.stdout)
    assert len(told) == 2
    figures = re.findall(
        r"^  (?:sqsdelay|kombu) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", done.stdout, re.M
    )
    assert len(figures) == 2
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        for name in (
            "ours",
            "ours-2",
            "sqsdelay-bench.delay-hand-over.ours-2",
            "kombu",
            "bench_celery_delayed_27",
            "sqsdelay-bench.delay-level-27",
        ):
            with pytest.raises(ChannelClosedByBroker, match="no queue"):
                connection.channel().queue_declare(name, passive=True)
