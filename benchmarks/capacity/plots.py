"""The plots of docs/capacity.md: the same SVG file for the same figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.capacity import relay_simulation as relay
from benchmarks.capacity import store_simulation as store
from benchmarks.capacity.figures import DEPLOYED
from benchmarks.capacity.systems import Systems

PENDING: Final = [round(10 ** (step / 4)) for step in range(16, 37)]
DUE: Final = [round(10 ** (step / 4)) for step in range(12, 29)]
_FLOOR_SECONDS: Final = 1.0
_TICKS: Final = {1: "on time", 60: "1 min", 3600: "1 h", 86_400: "1 day", 14 * 86_400: "14 days"}

Curve = tuple[str, str, Callable[[int], float]]
"""A name, a line style, and the lateness of the last message."""


def draw(systems: Systems, folder: Path) -> None:
    """Write ``capacity-pending.svg`` and ``capacity-due.svg``."""
    pending: list[Curve] = [
        (consumer.name, "-", partial(_relayed_late, consumer)) for consumer in systems.consumers
    ]
    pending.append(
        (
            f"parked over a year: {systems.dispatcher.name}",
            "--",
            lambda n: store.steady(systems.dispatcher, n / (365 * 86_400)).late_share(1),
        )
    )
    _plot(folder / "capacity-pending.svg", PENDING, pending, "messages pending, as many always")
    due: list[Curve] = []
    for consumer in (systems.worker(), systems.deployed, systems.consumers[-1]):
        for together, style, how in (
            (False, "-", "sent at any time"),
            (True, ":", "sent together"),
        ):
            due.append(
                (
                    f"{consumer.name}, {how}",
                    style,
                    partial(_minute_late, consumer, together),
                )
            )
    for dispatcher in (systems.dispatcher, systems.s3_dispatcher, systems.dispatcher_worker()):
        due.append(
            (
                f"parked: {dispatcher.name}",
                "--",
                partial(store.minute_late, dispatcher),
            )
        )
    _plot(folder / "capacity-due.svg", DUE, due, "messages due in one minute")


def _relayed_late(consumer: relay.Consumer, pending: int) -> float:
    return relay.steady(consumer, pending).late_share(1)


def _minute_late(consumer: relay.Consumer, together: bool, due: int) -> float:
    return relay.due_in_a_minute(consumer, due, together=together).late_share(1)


def _plot(file: Path, numbers: Sequence[int], curves: Sequence[Curve], about: str) -> None:
    # Text as text keeps the file small; the salt makes its ids the same each time.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": file.stem, "font.size": 9}):
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        axes: Any = figure.subplots()
        for name, style, late in curves:
            values = [max(_FLOOR_SECONDS, late(n)) for n in numbers]
            axes.plot(numbers, values, style, label=name, linewidth=1.6)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(_FLOOR_SECONDS * 0.8, 4 * DEPLOYED.retention_seconds)
        axes.set_yticks(list(_TICKS), list(_TICKS.values()))
        axes.minorticks_off()
        axes.set_xlabel(about)
        axes.set_ylabel("lateness of the last message")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", fontsize=8, frameon=False)
        figure.savefig(file, metadata={"Date": None, "Creator": None})
