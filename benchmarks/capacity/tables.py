"""The tables of docs/capacity.md, from the measurements and the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks.capacity import relay_simulation as relay
from benchmarks.capacity import store_simulation as store
from benchmarks.capacity.figures import ASSUMPTIONS, DEPLOYED, QUOTAS, READ_ON, SQS_SECONDS, Check
from benchmarks.capacity.systems import ON_TIME_SECONDS, Systems, checked, most

YEAR: Final = 365 * 24 * 3600
MILLION: Final = 1_000_000
PENDING: Final = (100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
DUE: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PARKED: Final = (
    (1_000_000, "a day", YEAR / 365),
    (10_000_000, "a day", YEAR / 365),
    (100_000_000, "30 days", 30 * YEAR / 365),
    (1_000_000_000, "a year", YEAR),
    (1_000_000_000, "30 days", 30 * YEAR / 365),
)

Row = Sequence[str]


def tables(systems: Systems) -> dict[str, str]:
    """Every table by the name of its block."""
    return {
        "measured": measured(systems),
        "figures": figures(),
        "answers": answers(systems),
        "pending": pending(systems),
        "due": due(systems),
        "parked": parked(systems),
        "check": check(systems),
    }


def measured(systems: Systems) -> str:
    """What 1,000 messages cost."""
    rows = [
        (
            name,
            ", ".join(f"{n:g} {action}" for action, n in cost.requests.items()),
            f"{cost.cpu_seconds * 1000:.0f} ms",
            f"{cost.start_mib:.0f} MiB",
            f"{cost.grown_mib * 1024:.0f} KiB",
        )
        for name, cost in systems.measured.costs.items()
    ]
    header = ("", "requests", "CPU time", "memory, warm", "grown")
    where = f"{systems.measured.measured_on}: {systems.measured.machine}."
    return f"{_table(header, rows)}\n\n{where}"


def figures() -> str:
    """Quotas and assumptions, each with its source."""
    rows = [
        (kind, figure.name, f"{figure.value:,g} {figure.unit}", figure.source)
        for kind, several in (("quota", QUOTAS), ("assumption", ASSUMPTIONS))
        for figure in several
    ]
    return _table(("", "what", "value", f"source (read {READ_ON})"), rows)


def answers(systems: Systems) -> str:
    """How many, what saturates first."""
    rows: list[Row] = []
    for consumer in systems.consumers:
        can = systems.relay_capacity(consumer)
        rows.append(
            (
                f"relay: {consumer.name}",
                _about(can.throughput),
                _about(can.pending),
                _about(can.due_spread),
                _about(can.due_together),
                can.saturates,
            )
        )
    for dispatcher in systems.all_dispatchers:
        many = round(dispatcher.throughput * DEPLOYED.ahead_seconds)
        at_once = most(partial(store.minute_late, dispatcher), many)
        rows.append(
            (
                f"parked: {dispatcher.name}",
                _about(dispatcher.throughput),
                "no limit",
                _about(at_once),
                _about(at_once),
                dispatcher.saturates,
            )
        )
    header = (
        "",
        "hops or releases a second",
        "pending, on time",
        "due in one minute, sent at any time",
        "sent together",
        "saturates first",
    )
    return (
        f"{_table(header, rows)}\n\nThe deployed function parks {_about(systems.parked_a_second)} messages "
        f"a second. {_in_one_second(systems.s3_dispatcher)}"
    )


def _in_one_second(dispatcher: store.Dispatcher) -> str:
    run = store.due_in_a_minute(dispatcher, MILLION, seconds=1)
    takes = _about(MILLION / dispatcher.throughput)
    return (
        f"Of a million messages due in the same second, the {dispatcher.name} releases all in {takes} s "
        f"of the {DEPLOYED.ahead_seconds} s ahead (half / the last late: {_late(run)})."
    )


def pending(systems: Systems) -> str:
    """Lateness when so many are pending, relayed: half of them, the last."""
    rows = []
    for consumer in systems.consumers:
        cells = []
        for number in PENDING:
            run = relay.steady(consumer, number)
            cell = f"{_time(run.late_share(0.5))} / {_time(run.late_share(1))}"
            lost = run.longest_stay > DEPLOYED.retention_seconds
            cells.append("lost" if lost else cell)
        rows.append((consumer.name, *cells))
    return _table(("", *(_about(n) for n in PENDING)), rows)


def due(systems: Systems) -> str:
    """Lateness when so many are due in one minute: half of them, the last."""
    rows = []
    for consumer in (systems.worker(), systems.deployed, systems.consumers[-1]):
        for together, how in ((False, "sent at any time"), (True, "sent together")):
            runs = [relay.due_in_a_minute(consumer, n, together=together) for n in DUE]
            rows.append((f"relay: {consumer.name}, {how}", *(_late(run) for run in runs)))
    for dispatcher in systems.all_dispatchers:
        released = [store.due_in_a_minute(dispatcher, n) for n in DUE]
        rows.append((f"parked: {dispatcher.name}", *(_late(run) for run in released)))
    return _table(("", *(_about(n) for n in DUE)), rows)


def parked(systems: Systems) -> str:
    """Lateness after a day when so many are parked, due evenly over a time."""
    rows = []
    for number, over, seconds in PARKED:
        rate = number / seconds
        cells = []
        for dispatcher in (
            systems.dispatcher,
            systems.s3_dispatcher,
            systems.dispatcher_worker(),
        ):
            run = store.steady(dispatcher, rate)
            overdue = f", {_about(run.overdue)} overdue" if run.overdue else ""
            cells.append(_late(run) + overdue)
        rows.append((_about(number), over, f"{rate:,.1f}", *cells))
    stores = ("function on DynamoDB", "function on S3", "worker on PostgreSQL")
    header = ("parked", "due over", "due a second", *stores)
    return _table(header, rows)


def check(systems: Systems) -> str:
    """Real runs beside the simulation, with the answer time assumed and with that of the run."""
    checks = systems.measured.checks
    assumed = checked(systems, dict.fromkeys(checks, SQS_SECONDS.value))
    as_it_was = checked(systems, {name: real.answer_seconds for name, real in checks.items()})
    rows = [
        (
            real.what,
            f"{real.real_half:.2f} s / {real.real_all:.2f} s",
            _compared(assumed[name], real),
            f"{real.answer_seconds * 1000:.1f} ms",
            _compared(as_it_was[name], real),
        )
        for name, real in checks.items()
    ]
    header = (
        "half / all of",
        "real",
        f"simulated, {SQS_SECONDS.value * 1000:.0f} ms an answer",
        "mean answer of the run",
        "simulated with that",
    )
    return _table(header, rows)


def _compared(simulated: tuple[float, float], real: Check) -> str:
    half, whole = simulated
    errors = f"{half / real.real_half - 1:+.0%} / {whole / real.real_all - 1:+.0%}"
    return f"{half:.2f} s / {whole:.2f} s ({errors})"


def _late(run: relay.Relayed | store.Emptied) -> str:
    return f"{_time(run.late_share(0.5))} / {_time(run.late_share(1))}"


def _time(seconds: float) -> str:
    """Seconds for people; what is on time is 0."""
    if seconds <= ON_TIME_SECONDS:
        return "0"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _about(number: float) -> str:
    """Two digits are all that the assumptions bear."""
    if number < 100:
        return f"{number:.0f}"
    return f"{float(f'{number:.2g}'):,.0f}"


def _table(header: Row, rows: Sequence[Row]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
