"""Parked as a schedule: never early, exact to the second, lost in no retry; cancelled until it is due."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sqsdelay import errors
from sqsdelay.core.limits import GATHERING_SECONDS
from sqsdelay.core.message import Route, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.rejection import read_rejection
from sqsdelay.core.schedule_input import firing_second, hidden_seconds, name_of, prefix_of
from sqsdelay.core.stored_message import Amendment, StoredMessage
from sqsdelay.parking.parking import Change, Parking, ParkingSettings, Schedule
from sqsdelay.relaying import DueRelay, Relay, RelaySettings, Status
from sqsdelay.relaying.gathering import AT_ONCE, Parker
from sqsdelay.sending.router import SenderSettings
from sqsdelay.sending.sender import QueueSender
from sqsdelay.sending.sizes import Pointer
from sqsdelay.stores import open_place, open_store
from sqsdelay.stores.calls import CONCURRENCY
from sqsdelay.stores.scheduler.scheduler_store import SchedulerStore
from sqsdelay.stores.shared import VERSION
from sqsdelay.testing import InMemoryQueues, ManualClock
from tests.messages import a_message
from tests.services.in_memory_scheduler import InMemoryScheduler, _Schedule

ROLE = "arn:aws:iam::123456789012:role/orders-scheduler"
DELAY, ERRORS, PARKING = "orders-delay.fifo", "orders-delay-error", "orders-parking"
HOUR, DAY = 3_600, 86_400
CONTEXT = ("schedule-arn", "scheduled-time", "execution-id", "attempt-number")


def yes() -> bool:
    return True


class World:
    """An endpoint, its consumer and a scheduler under one clock."""

    def __init__(self, *, late_seconds: float = 0, per_second: int | None = None) -> None:
        self.clock = ManualClock()
        self.queues = InMemoryQueues(self.clock)
        self.endpoint = self.queues.create_endpoint("orders")
        self.scheduler = InMemoryScheduler(self.clock, self.queues, late_seconds=late_seconds)
        self.store = self.new_store()
        self.store.set_up()
        self.scheduler._quota = per_second
        self.queues.create_queue(PARKING)
        settings = RelaySettings(parking=ParkingSettings(self.store, 7_200))
        self.relay = Relay(self.queues, self.endpoint, settings)
        self.parker = Parker(self.queues, self.endpoint, settings)
        self.sender = QueueSender(
            self.queues, SenderSettings(parking=ParkingSettings(self.store, 7_200))
        )
        self.schedule = Schedule(self.store, endpoint="orders")
        self.statuses: list[Status] = []
        self.emptied_ms = 0
        self.arrived: dict[str, tuple[int, ReceivedMessage]] = {}

    def new_store(self, endpoint: str = "orders", client: Any = None) -> SchedulerStore:
        return SchedulerStore(
            "orders",
            role_arn=ROLE,
            endpoint=endpoint,
            client=client or self.scheduler,
            clock=self.clock,
        )

    def waiting(self) -> list[_Schedule]:
        """The schedules of messages."""
        group = self.scheduler._groups["orders"]
        return [schedule for name, schedule in group.items() if name.startswith("m.")]

    def send(self, message_id: str, seconds: float, *, body: str = "x") -> Route | None:
        return self.sender.send("orders", body, delay=seconds, message_id=message_id).route

    def run(self, *, until_ms: int | None = None) -> None:
        """Let time pass, event by event, until nothing is to come."""
        while True:
            self.scheduler.fire()
            self.statuses += [
                outcome.status
                for outcome in self.relay.process(self.queues.receive_batch(DELAY, wait_seconds=0))
            ]
            if self.clock.true_ms >= self.emptied_ms + GATHERING_SECONDS * 1000:
                self.emptied_ms = self.clock.true_ms
                rounds = self.parker.rounds(more=yes)
                self.statuses += [each.status for some in rounds for each in some]
            for copy in self.queues.receive_batch("orders", wait_seconds=0):
                assert copy.message_id not in self.arrived, "arrived twice"
                self.arrived[copy.message_id] = (self.clock.true_ms, copy)
                self.queues.delete_batch("orders", [copy])
            coming = [self._next_visible(), self._next_emptied(), self.scheduler.next_ms()]
            times = [t for t in coming if t is not None]
            if not times or (until_ms is not None and min(times) > until_ms):
                if until_ms is not None:
                    self.clock.true_ms = max(self.clock.true_ms, until_ms)
                return
            self.clock.true_ms = max(self.clock.true_ms + 1, min(times))

    def _next_visible(self) -> int | None:
        held = self.queues.attributes(ERRORS)["ApproximateNumberOfMessages"]
        return None if held != "0" else self.queues.next_visible_ms(after_ms=self.clock.true_ms)

    def _next_emptied(self) -> int | None:
        waits = self.queues.attributes(PARKING)["ApproximateNumberOfMessages"] != "0"
        return self.emptied_ms + GATHERING_SECONDS * 1000 if waits else None

    def errors(self) -> list[ReceivedMessage]:
        return self.queues.receive_batch(ERRORS, wait_seconds=0)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("late_seconds", [0, 59])
def test_it_arrives_to_the_second_however_late_its_schedule_fires(late_seconds: int) -> None:
    """A year ahead: one schedule, one hop, and the message timer makes it exact."""
    world = World(late_seconds=late_seconds)
    due_ms = world.clock.true_ms + 365 * DAY * 1000
    assert world.send("m1", 365 * DAY, body="happy birthday") is Route.STORE
    world.run()
    at_ms, copy = world.arrived["m1"]
    # The service's clock is known to the second, and a relative delay counts from its latest reading.
    assert 0 <= at_ms - due_ms < 3_000
    assert copy.body == "happy birthday"
    assert world.statuses == [Status.HANDED_OVER]
    assert world.store.pending_count() == 0


def test_a_copy_from_the_delay_queue_is_parked_and_comes_back(world: World) -> None:
    """The delay consumer parks, too; the message hops once more when its schedule has fired."""
    plain = QueueSender(world.queues)
    due_ms = world.clock.true_ms + 90 * DAY * 1000
    plain.send("orders", "x", delay=90 * DAY, message_id="m1")
    world.run(until_ms=world.clock.true_ms + HOUR * 1000)
    assert world.statuses == [Status.PARKED]
    world.run()
    assert 0 <= world.arrived["m1"][0] - due_ms < 1_000


def test_a_service_that_cannot_send_for_hours_makes_messages_late_not_lost(world: World) -> None:
    """The parking queue is gone when the schedule fires, and is back two hours later."""
    due_ms = world.clock.true_ms + 30 * DAY * 1000
    world.send("m1", 30 * DAY)
    world.queues.delete_queue(PARKING)
    world.clock.true_ms = due_ms + 2 * HOUR * 1000
    before_ms = world.clock.true_ms
    for _ in range(3):
        world.scheduler.fire()
    world.queues.create_queue(PARKING)
    world.run()
    assert world.arrived["m1"][0] >= before_ms
    assert world.errors() == []


def test_a_schedule_that_fires_twice_delivers_once(world: World) -> None:
    """The service may; so may SQS hand out what it sent twice."""
    world.send("m1", DAY)
    (schedule,) = world.waiting()
    request = json.loads(schedule.fields["Target"]["Input"])
    world.scheduler._send(request)
    world.run()
    assert list(world.arrived) == ["m1"]


def test_a_fifo_endpoint_s_messages_keep_their_order(clock: ManualClock) -> None:
    """Through its due queue, which delivers in the order of due times; group and id with them."""
    queues = InMemoryQueues(clock)
    endpoint = queues.create_endpoint("pay.fifo")
    queues.create_queue("pay-parking")
    scheduler = InMemoryScheduler(clock, queues)
    store = SchedulerStore("pay", role_arn=ROLE, endpoint="pay.fifo", client=scheduler, clock=clock)
    store.set_up()
    settings = RelaySettings(parking=ParkingSettings(store, 7_200))
    sender = QueueSender(queues, SenderSettings(parking=ParkingSettings(store, 7_200)))
    for n in reversed(range(30)):
        sender.send(
            "pay.fifo",
            f"{n}",
            delay=DAY + n,
            message_group_id="g",
            message_deduplication_id=f"d{n}",
        )
    parker, due_relay = Parker(queues, endpoint, settings), DueRelay(queues, endpoint, settings)
    arrived: list[ReceivedMessage] = []
    for second in range(DAY - 1_800, DAY + 60):
        clock.true_ms += (DAY - 1_800) * 1000 if second == DAY - 1_800 else 1000
        scheduler.fire()
        if second % GATHERING_SECONDS == 0:
            list(parker.rounds(more=yes))
        due_relay.process(queues.receive_batch("pay-due", wait_seconds=0))
        copies = queues.receive_batch("pay.fifo", wait_seconds=0)
        queues.delete_batch("pay.fifo", copies)
        arrived += copies
    assert [copy.body for copy in arrived] == [f"{n}" for n in range(30)]
    assert {copy.group_id for copy in arrived} == {"g"}


def test_a_crowded_queue_sends_for_help_once(world: World) -> None:
    """With more than a round in it; whoever helps goes on until it is empty."""
    due_ms = world.clock.true_ms + DAY * 1000
    world.store.store(
        [_message(world, message_id=f"m{n}", due_ms=due_ms) for n in range(2 * AT_ONCE + 50)]
    )
    for seconds in range(1_800, 700, -60):
        world.clock.true_ms = due_ms - seconds * 1000
        world.scheduler.fire()
    asked: list[str] = []
    rounds = world.parker.rounds(more=yes, crowded=lambda: asked.append("help"))
    outcomes = [outcome for some in rounds for outcome in some]
    assert asked == ["help"]
    assert [outcome.status for outcome in outcomes] == [Status.HANDED_OVER] * (2 * AT_ONCE + 50)
    # In tens, and one receive that finds nothing.
    assert world.queues.calls.count("send") - len(outcomes) == len(outcomes) // 10
    assert world.queues.attributes(PARKING)["ApproximateNumberOfMessages"] == "0"


def test_what_cannot_be_sent_for_a_day_is_in_the_error_queue_with_its_reason(world: World) -> None:
    """The dead letter of a schedule reads like any other message of the error queue."""
    world.send("m1", 30 * DAY, body="kept")
    due_ms = world.store.pending(1)[0].due_ms
    world.queues.delete_queue(PARKING)
    world.clock.true_ms = due_ms + 2 * DAY * 1000
    world.scheduler.fire()
    (copy,) = world.errors()
    rejection = read_rejection(copy)
    assert rejection.message_id == "m1"
    assert rejection.due == due_ms
    assert PARKING in (rejection.reason or "")
    assert "(AWS.SimpleQueueService.NonExistentQueue)" in (rejection.reason or "")
    assert rejection.original.body == "kept"


@pytest.mark.parametrize("late_seconds", [0, 59])
def test_cancelled_at_any_time_before_it_is_due_it_never_arrives(late_seconds: int) -> None:
    """Deleted while it waits; by an amendment once its schedule has fired, or fires at any moment."""
    said = set()
    for minutes in (0, 1, 60, 24 * 60 - 33, *range(24 * 60 - 31, 24 * 60 - 16)):
        world = World(late_seconds=late_seconds)
        start_ms = world.clock.true_ms
        world.send("m1", DAY)
        world.run(until_ms=start_ms + minutes * 60_000)
        change = world.schedule.cancel("m1", now_ms=world.clock.true_ms + 1_000)
        said.add(change)
        world.run()
        assert world.arrived == {}, (minutes, change)
    assert said == {Change.DONE, Change.REQUESTED}


def test_two_endpoints_that_share_a_group_do_not_see_each_other_s_messages(world: World) -> None:
    """The same id in both: neither finds, lists, cancels, moves or amends the other's."""
    other = world.new_store("invoices")
    other.set_up()
    world.send("m1", DAY)
    assert other.store([_message(world, destination="invoices", body=b"theirs")]) == [True]
    assert [m.body for m in other.pending(9)] == [b"theirs"]
    assert (other.pending_count(), world.store.pending_count()) == (1, 1)
    schedule = Schedule(other, endpoint="invoices")
    assert schedule.cancel("m1", now_ms=world.clock.true_ms + 1_000) is Change.DONE
    assert other.find("m1") is None
    assert world.store.amendments(["m1"]) == {}
    world.run()
    assert list(world.arrived) == ["m1"]


def test_a_schedule_that_sends_elsewhere_is_nobody_s_message(world: World) -> None:
    """Of that name, made by somebody else: it is not read, cancelled or listed. An amendment that cannot be
    read is not none: its message waits."""
    world.send("m1", DAY)
    (schedule,) = world.waiting()
    target = schedule.fields["Target"]
    target["Input"] = target["Input"].replace("orders-parking", "another-parking")
    amended = name_of("m1", world.store._amendments)
    world.scheduler.create_schedule(**{**schedule.fields, "Name": amended})
    with pytest.raises(errors.StoreError, match="not an amendment of sqsdelay"):
        world.store.amendments(["m1"])
    assert world.store.find("m1") is None
    assert world.store.pending(9) == []
    assert world.store.cancel(["m1"]) == [False]
    assert world.store.reschedule("m1", world.clock.true_ms + 9 * DAY * 1000) is False


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_a_group_of_somebody_else_s_schedules_is_refused(world: World, count: int) -> None:
    """Before the first message is in it, behind however many of sqsdelay's."""
    world.send("m1", DAY)
    world.store.set_up()
    schedules, (schedule,) = world.scheduler._groups["orders"], world.waiting()
    schedules |= {name_of(f"m{n}", world.store._names): schedule for n in range(count)}
    world.scheduler.create_schedule(**{**schedule.fields, "Name": "nightly-backup"})
    before = len(schedules)
    with pytest.raises(errors.ConfigurationError, match=r"nightly-backup.*a group of its own"):
        world.new_store("invoices").set_up()
    assert len(schedules) == before


class Interrupted:
    """A client whose `UpdateSchedule` others precede, at the last moment."""

    def __init__(self, world: World, first: Callable[[], object]) -> None:
        self._scheduler, self._first = world.scheduler, first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def update_schedule(self, **asked: Any) -> Any:
        self._first()
        return self._scheduler.update_schedule(**asked)


@pytest.mark.parametrize("days", [2, 30])
def test_a_move_beside_a_cancellation_and_a_new_send_takes_nothing_away(
    world: World, days: int
) -> None:
    """The mover has read the old message when it is cancelled, and another with its id is sent."""
    world.send("m1", DAY, body="old")
    start_ms = world.clock.true_ms

    def cancelled_and_sent_anew() -> None:
        assert world.schedule.cancel("m1", now_ms=start_ms + 1_000) is Change.DONE
        world.send("m1", days * DAY, body="new")

    store = world.new_store(client=Interrupted(world, cancelled_and_sent_anew))
    mover = Schedule(store, endpoint="orders")
    later_ms = start_ms + 9 * DAY * 1000
    assert mover.reschedule("m1", later_ms, now_ms=start_ms) is not Change.DONE
    found = world.store.find("m1")
    assert found is not None
    assert found.body == b"new"
    world.run()
    at_ms, copy = world.arrived["m1"]
    assert copy.body == "new"
    assert 0 <= at_ms - found.due_ms < 3_000


def test_cancelled_and_sent_anew_twice_at_once_is_told_to_wait(world: World) -> None:
    """There are two names for an id, and a mover may be at work on both of them for some minutes."""
    for _ in range(2):
        world.send("m1", DAY)
        world.clock.advance(5)
        assert world.schedule.cancel("m1", now_ms=world.clock.true_ms) is Change.DONE
    with pytest.raises(errors.StoreUnavailable, match="cancelled twice"):
        world.send("m1", DAY)
    world.clock.advance(600)
    assert world.send("m1", DAY) is Route.STORE
    world.run()
    assert list(world.arrived) == ["m1"]


def test_a_mover_that_stood_still_writes_nothing(world: World) -> None:
    """What it has read may be of a message that is long gone."""
    world.send("m1", DAY)
    store = world.new_store()
    read = store._read

    def slowly(*given: Any) -> Any:
        found = read(*given)
        world.clock.advance(100)
        return found

    store._read = slowly  # type: ignore[method-assign, assignment]
    with pytest.raises(errors.StoreUnavailable, match="try again"):
        store.reschedule("m1", world.clock.true_ms + 9 * DAY * 1000)
    assert "UpdateSchedule" not in world.scheduler.calls


@pytest.mark.parametrize(("seconds", "late"), [(1_200, 0), (1, 1_200), (-9, 1_200)])
def test_a_move_to_a_near_time_while_it_is_being_parked_counts(
    world: World, seconds: int, late: int
) -> None:
    """Nobody can refuse it: the message is in no store yet. It comes as soon as a schedule can."""
    plain = QueueSender(world.queues)
    start_ms = world.clock.true_ms
    plain.send("orders", "x", delay=9 * DAY, message_id="m1")
    create = world.scheduler.create_schedule
    moved: list[int] = []

    def create_schedule(**asked: Any) -> Any:
        if not moved:
            now_ms = world.clock.true_ms
            moved.append(now_ms + seconds * 1000)
            mover = Schedule(world.new_store(), endpoint="orders")
            change = mover.reschedule("m1", moved[0], now_ms=now_ms)
            assert change is Change.REQUESTED
        return create(**asked)

    world.scheduler.create_schedule = create_schedule  # type: ignore[method-assign]
    world.run()
    assert 0 <= world.arrived["m1"][0] - moved[0] < 1_000 * (late + 1)
    assert moved[0] - start_ms < DAY * 1000


def test_sent_again_right_after_it_was_cancelled_it_arrives(world: World) -> None:
    """An amendment is of what was sent before it, although clocks are known to the second."""
    world.send("m1", DAY)
    world.schedule.cancel("m1", now_ms=world.clock.true_ms + 1_000)
    world.send("m1", 2 * DAY)
    world.run()
    assert list(world.arrived) == ["m1"]


def test_moved_it_arrives_when_it_is_due_now(world: World) -> None:
    """Earlier and later, while it waits and once its schedule has fired."""
    start_ms = world.clock.true_ms
    for name in ("earlier", "later", "late"):
        world.send(name, 2 * DAY)
    moved = {"earlier": start_ms + DAY * 1000, "later": start_ms + 9 * DAY * 1000}
    for name, due_ms in moved.items():
        assert world.schedule.reschedule(name, due_ms, now_ms=world.clock.true_ms) is Change.DONE
    world.run(until_ms=start_ms + (2 * DAY - 900) * 1000)
    moved["late"] = start_ms + 3 * DAY * 1000
    now_ms = world.clock.true_ms
    assert world.schedule.reschedule("late", moved["late"], now_ms=now_ms) is Change.REQUESTED
    world.run()
    for name, due_ms in moved.items():
        assert 0 <= world.arrived[name][0] - due_ms < 1_000, name


def test_a_new_due_time_too_near_is_refused_and_changes_nothing(world: World) -> None:
    """A schedule cannot release a message within half an hour; it says what to do instead."""
    start_ms = world.clock.true_ms
    world.send("m1", DAY)
    with pytest.raises(errors.InvalidMessage, match=r"within 1800 s; cancel it, and send it anew"):
        world.schedule.reschedule("m1", start_ms + 600_000, now_ms=start_ms)
    world.run()
    assert world.arrived["m1"][0] - start_ms >= DAY * 1000


def test_context_attributes_in_a_body_are_left_alone(world: World) -> None:
    """The service replaces them wherever they stand in an input."""
    body = "".join(f"<aws.scheduler.{name}>" for name in CONTEXT) + " \\u003caws.scheduler.x> <"
    attributes = {"A": string(f"<aws.scheduler.{CONTEXT[0]}>")}
    world.sender.send("orders", body, delay=DAY, message_id="m1", attributes=attributes)
    assert world.store.pending(1)[0].body.decode() == body
    world.run()
    copy = world.arrived["m1"][1]
    assert copy.body == body
    assert copy.attributes["A"]["StringValue"] == f"<aws.scheduler.{CONTEXT[0]}>"


def test_an_id_is_one_message(world: World) -> None:
    """The same again is the same; another under its id is refused, as with any store."""
    due = a_message("m1", world.clock.true_ms + DAY * 1000)
    parking = Parking(world.store, after_seconds=7_200)
    assert parking.park([due, due]) == [True, False]
    assert parking.park([due]) == [False]
    for other in (replace(due, body=b"y"), replace(due, due_ms=due.due_ms + 1)):
        (error,) = parking.park([other])
        assert "m1" in str(error)


def test_throttled_it_hops_on_and_loses_nothing() -> None:
    """Two schedules a second are taken; what is refused stays in the delay queue and tries again."""
    world = World(per_second=2)
    plain = QueueSender(world.queues)
    due_ms = world.clock.true_ms + DAY * 1000
    for number in range(10):
        plain.send("orders", "x", delay=DAY, message_id=f"m{number}")
    world.run()
    assert Status.REQUEUED in world.statuses
    assert sorted(world.arrived) == [f"m{n}" for n in range(10)]
    assert all(0 <= at_ms - due_ms < 2_000 for at_ms, _ in world.arrived.values())


def test_a_group_that_is_throttled_says_so() -> None:
    """A sender hears it: nothing was stored of what it names."""
    world = World(per_second=0)
    with pytest.raises(errors.StoreUnavailable, match="Rate exceeded"):
        world.store.store([_message(world)])


def _message(world: World, **fields: object) -> StoredMessage:
    due_ms = world.clock.true_ms + DAY * 1000
    given = {"message_id": "m1", "destination": "orders", "due_ms": due_ms, "body": b"x"}
    return StoredMessage(**(given | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"destination": "invoices"}, errors.InvalidMessage, "use the store of that endpoint"),
        ({"body": b"\xff"}, errors.InvalidMessage, "not text that SQS accepts"),
        ({"body": b""}, errors.InvalidMessage, "not text that SQS accepts"),
        ({"body": b"x" * 262_144}, errors.MessageTooLarge, "a bucket for large bodies"),
        ({"message_id": "\N{SNOWMAN}"}, errors.InvalidMessage, "cannot be a message group"),
        ({"due_ms": 1_800_000_600_000}, errors.InvalidMessage, "due in 600 s"),
    ],
)
def test_what_a_schedule_cannot_hold_is_refused_at_once(
    world: World, fields: dict[str, object], error: type[Exception], text: str
) -> None:
    """Not when it is due, with nobody there who knows the message."""
    with pytest.raises(error, match=text):
        world.store.store([_message(world, **fields)])
    assert world.store.pending_count() == 0


def test_messages_due_at_once_fire_over_a_quarter_of_an_hour() -> None:
    """1,000 invocations a second are what the service takes; one second's million must not queue."""
    due_ms = 1_800_000_000_000
    # Another second would be a second schedule of the same message.
    assert [firing_second(id_, due_ms) for id_ in ("m0", "\ud800")] == [1799998279, 1799998760]
    fired = Counter(firing_second(f"m{n}", due_ms) for n in range(100_000))
    assert due_ms // 1000 - max(fired) >= 840
    assert due_ms // 1000 - min(fired) < 840 + 900
    assert max(fired.values()) < 2 * 100_000 / 900
    assert {second + hidden_seconds(due_ms, fires_at=second) for second in fired} == {
        due_ms // 1000 - 840
    }


def test_it_is_opened_by_its_url() -> None:
    """For senders and delay consumers; there is nothing to dispatch."""
    url = f"scheduler://orders?role={ROLE}"
    with pytest.raises(errors.ConfigurationError, match="there is nothing to dispatch"):
        open_store(url, endpoint="orders")
    for wrong in ("scheduler://orders", f"{url}&class=x", "scheduler://orders?role=me"):
        with pytest.raises(errors.ConfigurationError, match="role"):
            open_place(wrong, endpoint="orders")


def test_parking_sooner_than_a_schedule_can_fire_is_refused_at_the_start(world: World) -> None:
    """Not message by message, weeks later."""
    with pytest.raises(errors.ConfigurationError, match="park_after_seconds=900; use 1800 or more"):
        Parking(world.store, after_seconds=900)


def test_its_schedules_ask_for_what_the_docs_say(world: World) -> None:
    """The role, the retries, the dead-letter queue, and that it is gone afterwards."""
    world.send("m1", DAY)
    (one,) = world.scheduler.list_schedules(GroupName="orders", NamePrefix="m.")["Schedules"]
    made = world.scheduler.get_schedule(Name=one["Name"], GroupName="orders")
    assert made["ActionAfterCompletion"] == "DELETE"
    assert made["Target"]["RoleArn"] == ROLE
    assert made["Target"]["DeadLetterConfig"] == {
        "Arn": f"arn:aws:sqs:us-east-1:123456789012:{ERRORS}"
    }
    url = f"https://sqs.us-east-1.amazonaws.com/123456789012/{PARKING}"
    assert json.loads(made["Target"]["Input"])["QueueUrl"] == url


def test_what_is_too_large_for_a_schedule_hops_without_a_bucket(world: World) -> None:
    """Not an error: it costs more, and arrives."""
    assert world.send("m1", 3 * HOUR, body="x" * 300_000) is Route.DELAY_QUEUE
    world.run()
    assert world.arrived["m1"][1].body == "x" * 300_000
    assert Status.REQUEUED in world.statuses
    assert Status.PARKED not in world.statuses


def test_what_is_too_large_for_a_schedule_goes_to_the_bucket_if_there_is_one(world: World) -> None:
    """Although SQS would take it as it is."""
    bodies = InMemoryBodies()
    settings = SenderSettings(parking=ParkingSettings(world.store, 7_200), large_bodies=bodies)
    sender = QueueSender(world.queues, settings)
    for message_id, size in (("small", 20_000), ("quotes", 200_000), ("large", 300_000)):
        sent = sender.send("orders", '"' * size, delay=DAY, message_id=message_id)
        assert sent.route is Route.STORE
    assert sorted(map(len, bodies.kept)) == [200_000, 300_000]
    assert sender.send("orders", "x" * 300_000, delay=HOUR).route is Route.DELAY_QUEUE
    assert len(bodies.kept) == 2


class InMemoryBodies:
    """A place for large bodies."""

    above_bytes = 1_000_000

    def __init__(self) -> None:
        self.kept: list[str] = []

    def put(self, body: str, *, needed_until_ms: int) -> str:
        self.kept.append(body)
        return Pointer("bodies", str(len(self.kept))).to_body()


def test_a_group_that_is_missing_is_noticed_at_the_start(world: World) -> None:
    """As a missing table is: nothing hops for a year because somebody mistyped a name."""
    missing = SchedulerStore(
        "order", role_arn=ROLE, endpoint="orders", client=world.scheduler, clock=world.clock
    )
    for ask in (
        lambda: missing.amendments(["-"]),
        lambda: missing.store([_message(world)]),
        lambda: missing.pending(1),
        lambda: missing.amend([Amendment(message_id="m1", at_ms=world.clock.true_ms)]),
    ):
        with pytest.raises(errors.StoreMissing, match="schedule group order does not exist"):
            ask()


def test_the_version_is_a_schedule_that_never_fires(world: World) -> None:
    """Written by the first who comes, whatever he comes for; one each for endpoints that share a group. Two
    who come at once agree."""
    world.run()
    (name,) = [s["Name"] for s in world.scheduler.list_schedules(GroupName="orders")["Schedules"]]
    mark = world.scheduler.get_schedule(Name=name, GroupName="orders")
    assert (mark["Description"], mark["State"]) == (str(VERSION), "DISABLED")
    for endpoint in ("invoices", "refunds"):
        assert world.new_store(endpoint).find("m1") is None
    listed = world.scheduler.list_schedules(GroupName="orders", NamePrefix="v.")["Schedules"]
    assert len(listed) == 3
    get: Any = world.scheduler.get_schedule

    def too_early(**asked: Any) -> Any:
        world.scheduler.get_schedule = get  # type: ignore[method-assign]
        return get(**asked | {"Name": "not-there"})

    world.scheduler.get_schedule = too_early  # type: ignore[method-assign]
    assert world.new_store().pending(1) == []
    assert world.store.pending_count() == 0


@pytest.mark.parametrize("version", [str(VERSION + 1), "", "one"])
def test_another_version_is_refused_by_whatever_opens_it(world: World, version: str) -> None:
    """With the remedy, and nothing is written; by a process that lives on once it has been still."""
    world.send("m1", DAY)
    (mark,) = world.scheduler.list_schedules(GroupName="orders", NamePrefix="v.")["Schedules"]
    schedules = world.scheduler._groups["orders"]
    schedules[mark["Name"]].fields["Description"] = version
    before = set(schedules)
    now_ms = world.clock.true_ms
    uses: list[Callable[[SchedulerStore], object]] = [
        lambda store: store.set_up(),
        lambda store: store.store([_message(world)]),
        lambda store: store.pending(1),
        lambda store: store.pending_count(),
        lambda store: store.find("m1"),
        lambda store: store.cancel(["m1"]),
        lambda store: store.reschedule("m1", now_ms + 9 * DAY * 1000),
        lambda store: store.amend([Amendment(message_id="m1", at_ms=now_ms)]),
        lambda store: store.amendments(["m1"]),
    ]
    world.clock.advance(600)
    for use in uses:
        for store in (world.new_store(), world.store):
            told = "schedule group orders was made by another sqsdelay: .*; name another schedule group"
            with pytest.raises(errors.SchemaMismatch, match=told):
                use(store)
    assert set(schedules) == before


def test_more_are_cancelled_at_once_than_there_are_threads(world: World) -> None:
    """None waits for a thread that waits for it."""
    messages = [_message(world, message_id=f"m{n}") for n in range(3 * CONCURRENCY)]
    world.store.store(messages)
    assert all(world.store.cancel([each.message_id for each in messages]))
    assert world.store.pending_count() == 0


def test_the_version_is_asked_for_once(world: World) -> None:
    """However many messages are stored, found and cancelled."""
    world.scheduler.calls.clear()
    store = world.new_store()
    messages = [_message(world, message_id=f"m{n}") for n in range(50)]
    store.store(messages)
    asked = Counter(world.scheduler.calls)
    again = world.new_store()
    again.store([_message(world, message_id=f"n{n}") for n in range(100)])
    twice = Counter(world.scheduler.calls)
    twice.subtract(asked)
    assert twice["GetSchedule"] - 1 == 2 * (asked["GetSchedule"] - 1)
    assert (asked["CreateSchedule"], twice["CreateSchedule"]) == (50, 100)


def test_no_region_is_a_setting_to_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, as for SQS; no traceback of boto3's."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    with pytest.raises(errors.ConfigurationError, match="AWS_DEFAULT_REGION"):
        open_place(f"scheduler://orders?role={ROLE}", endpoint="orders")


def test_one_amendment_that_cannot_be_read_takes_no_other_along(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round asks for hundreds at once: what was cancelled beside it does not arrive."""
    known = [f"m{n}" for n in range(3)]
    world.store.amend([Amendment(message_id=n, at_ms=world.clock.true_ms) for n in known])
    get: Any = world.scheduler.get_schedule
    asked: list[str] = []

    def throttled(**named: Any) -> Any:
        asked.append(named["Name"])
        if named["Name"] == refused:
            raise ClientError({"Error": {"Code": "ThrottlingException"}}, "GetSchedule")
        return get(**named)

    monkeypatch.setattr(world.scheduler, "get_schedule", throttled)
    refused = ""
    world.store.amendments(["m1"])
    (refused,) = asked
    with pytest.raises(errors.ReadInPart, match="1 of 3 were not read") as raised:
        world.store.amendments(known)
    assert (set(raised.value.found), raised.value.unread) == ({"m0", "m2"}, ["m1"])
    with pytest.raises(errors.StoreUnavailable):
        world.store.amendments(["m1"])


@pytest.mark.parametrize("runs", [1, 9], ids=["for a while", "beyond its due time"])
def test_what_may_be_cancelled_is_left_to_the_next_run(
    world: World, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    """As long as its amendment cannot be read. One beside it, whose amendment can be read, waits for
    nothing."""
    for name in ("cancelled", "beside", "gone"):
        world.send(name, DAY)
    due_ms = world.clock.true_ms + DAY * 1000
    world.run(until_ms=due_ms - 845_000)
    changes = [world.schedule.cancel(n, now_ms=world.clock.true_ms) for n in ("cancelled", "gone")]
    assert changes == [Change.REQUESTED] * 2
    refused = name_of("cancelled", prefix_of(world.store._queue_url, "a"))
    get: Any = world.scheduler.get_schedule
    left = [runs]

    def throttled(**named: Any) -> Any:
        if named["Name"] == refused and left[0]:
            left[0] -= 1
            raise ClientError({"Error": {"Code": "ThrottlingException"}}, "GetSchedule")
        return get(**named)

    monkeypatch.setattr(world.scheduler, "get_schedule", throttled)
    world.run()
    assert Counter(world.statuses)[Status.FAILED] == runs
    assert set(world.arrived) == {"beside"}
    assert all(0 <= at_ms - due_ms < 3_000 for at_ms, _ in world.arrived.values())
