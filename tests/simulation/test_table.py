"""Nothing lost, early or altered under virtual time, whatever fails. docs/reliability.md says what the suite
has counted, and explains every duplicate it knows of."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sqsdelay.core.outgoing import requeued
from sqsdelay.core.received_message import DelayedMessage, ReceivedMessage, from_boto3
from tests.simulation.journal import Asked, Journal
from tests.simulation.scenarios import VIRTUAL, VirtualScenario
from tests.simulation.store_faults import S3, StoreScenario
from tests.simulation.table import BEGIN, DOCUMENT, END, GROUPS, rewritten, tables, told
from tests.simulation.tally import Cause, Tally, cause_of, forks
from tests.simulation.virtual_party import Trouble
from tests.simulation.virtual_world import Plan, Run

DOCUMENTED = DOCUMENT.read_text()
ROWS = re.findall(r"^\| (.+?) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", told(DOCUMENTED), re.M)


def test_each_fault_has_its_row() -> None:
    """A fault that is added or taken away changes the tables: `make faults`."""
    faults = [list(dict.fromkeys(s.fault for s in group)) for group in GROUPS.values()]
    assert [row[0] for row in ROWS] == [fault for group in faults for fault in group]


def test_nothing_was_lost_early_or_altered() -> None:
    """In all rows together; and in each there was something to lose."""
    assert "lost 0, early 0, altered 0, " in told(DOCUMENTED)
    sent = [int(row[1].replace(",", "")) for row in ROWS]
    assert min(sent) >= 100
    assert f"In all: {sum(sent):,} messages sent, " in told(DOCUMENTED)


def test_every_cause_is_explained() -> None:
    """Each cause of a duplicate has its own line outside the tables."""
    prose = DOCUMENTED.partition(BEGIN)[0] + DOCUMENTED.partition(END)[2]
    assert [cause for cause in Cause if f"**{cause}**" not in prose] == []


def test_rewriting_replaces_the_tables_alone() -> None:
    """What people wrote around them stays. Scenarios of one fault are one row."""
    counted = Tally(sent=1234, unknown=0, hops=9, injected=2, duplicated=1)
    counted.causes[Cause.DIED] += 1
    made = rewritten(DOCUMENTED, tables([(VIRTUAL[0], counted), (VIRTUAL[0], counted)]))
    assert f"| {VIRTUAL[0].fault} | 2,468 | 4 | 2 |\n\nIn all: 2,468 messages sent, " in told(made)
    assert (
        f"lost 0, early 0, altered 0, error queue 0, duplicated 2. Causes: {Cause.DIED} 2." in made
    )
    assert made.partition(BEGIN)[0] == DOCUMENTED.partition(BEGIN)[0]
    assert made.partition(END)[2] == DOCUMENTED.partition(END)[2]


# Which copy a party sent on, and why twice: what a duplicate's cause is told by.

DELAY_QUEUE = "orders-delay.fifo"
BODY = '{"key": "m-1"}'


def received(copy_id: str, *, deduplication_id: str) -> ReceivedMessage:
    raw = {
        "MessageId": copy_id,
        "ReceiptHandle": copy_id,
        "Body": BODY,
        "Attributes": {
            "SentTimestamp": "1700000000000",
            "MessageGroupId": "m-1",
            "MessageDeduplicationId": deduplication_id,
        },
    }
    return from_boto3(raw, received_at=0)


def asked(copy: ReceivedMessage, made: str) -> Asked:
    """The copy's requeue, as the relay makes it."""
    entry = requeued(copy, DelayedMessage("m-1", due_ms=1_700_009_000_000), 9000)
    return Asked(
        body=entry.body, deduplication_id=entry.deduplication_id, timer_seconds=None, made=made
    )


def test_a_requeue_tells_which_copy_it_is_of() -> None:
    """Though the party has received another copy of that message since."""
    journal = Journal()
    first = received("a", deduplication_id=f"send.{64 * '0'}")
    again = asked(first, "b")
    second = received("b", deduplication_id=again.deduplication_id or "")
    for copy in (first, second):
        journal.received("worker", DELAY_QUEUE, [copy], at_ms=1)
    journal.sent("worker", DELAY_QUEUE, [again], at_ms=2, answered=True)
    journal.sent("worker", DELAY_QUEUE, [asked(second, "c")], at_ms=3, answered=True)
    sends = journal.sends("m-1", DELAY_QUEUE)
    assert [(step.copy, step.made) for step in sends] == [("a", "b"), ("b", "c")]
    assert forks("m-1", journal) == []


def test_a_retry_may_be_served_before_what_it_repeats() -> None:
    """The first answer was waited for in vain; a second send after an answer is another matter."""
    journal = Journal()
    send = Asked(body=BODY, deduplication_id=None, timer_seconds=0, made="retry")
    late = replace(send, made="late")
    journal.sent("sender", "orders", [send], at_ms=5, asked_ms=4, answered=True)
    journal.sent("sender", "orders", [late], at_ms=6, asked_ms=1, answered=False)
    journal.sent("sender", "orders", [replace(send, made="third")], at_ms=8, answered=True)
    (pair, *_) = forks("m-1", journal)
    assert cause_of(*pair, journal) is Cause.ANSWER_LOST
    first, _, third = journal.sends("m-1", "orders")
    assert cause_of(first, third, journal) is None


MESSAGES = 200


@pytest.mark.parametrize(
    "seed", [11, *(pytest.param(n, marks=pytest.mark.nightly) for n in (12, 13))]
)
@pytest.mark.parametrize("scenario", VIRTUAL, ids=lambda scenario: scenario.fault)
def test_the_promise_is_kept(scenario: VirtualScenario, seed: int) -> None:
    """Every accepted message arrives, on time, as sent; many hops."""
    counted = scenario.run(seeds=[seed], messages=MESSAGES)
    counted.check()
    assert counted.sent + counted.unknown == MESSAGES
    spared = "nobody" in scenario.fault or scenario.plan.parked
    assert counted.hops > 4 * counted.sent or spared
    if scenario.plan.chances:
        assert counted.injected > 15


@pytest.mark.parametrize("scenario", S3, ids=lambda scenario: scenario.fault)
def test_the_s3_store_keeps_it(scenario: StoreScenario) -> None:
    """Broken at its calls: nothing lost or early, and repeated no more than a batch for each break."""
    counted = scenario.run(seeds=[11], messages=MESSAGES)
    counted.check()
    assert counted.sent > MESSAGES / 4
    assert counted.injected > 20


def test_the_same_seed_is_the_same_run() -> None:
    """A failure can be seen again: by its seed."""
    plan = Plan(chances=dict.fromkeys(Trouble, 0.02), wrong_clocks=True)
    first, second, other = (Run(plan, seed=s, messages=60).tally() for s in (5, 5, 6))
    assert first == second
    assert first != other
