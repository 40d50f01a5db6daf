"""Changes by id in an S3 store: what can be found, what is refused, and what is noted of an id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqsdelay.core.delay import utc
from sqsdelay.core.endpoint import QueueRef
from sqsdelay.core.message import due_ms_of_id
from sqsdelay.errors import ConfigurationError
from sqsdelay.parking.parking import Change
from sqsdelay.sending.sender import QueueSender
from sqsdelay.testing import InMemoryQueues
from tests.services.in_memory_s3 import InMemoryS3
from tests.unit.relay_site import DAY, S3Site


def noted(s3: InMemoryS3) -> list[str]:
    return [key for key in s3.objects if "/ids/" in key]


def test_a_refused_change_changes_nothing() -> None:
    """Not even a message that hops: the answer was an error."""
    site = S3Site()
    site.new_sender().send("orders", "hello", delay=7200, message_id="mine")
    with pytest.raises(ConfigurationError, match="lookup=on"):
        site.sender.cancel("orders", "mine")
    with pytest.raises(ConfigurationError, match="lookup=on"):
        site.sender.reschedule("orders", "mine", delay=20_000)
    assert site.store.amendments(["mine"]) == {}
    assert site.run(7260) == ["hello"]


def test_a_message_moved_before_it_was_parked_is_found_by_its_id() -> None:
    """Its id tells the former due time: what it is now is noted, and forgotten with it."""
    s3 = InMemoryS3()
    site = S3Site(s3=s3)
    mine = site.new_sender().send("orders", "hello", delay=3 * DAY).message_id or ""
    assert site.sender.reschedule("orders", mine, delay=5 * DAY) is Change.REQUESTED
    site.run(960)
    assert len(noted(s3)) == 1
    assert site.sender.reschedule("orders", mine, delay=4 * DAY) is Change.DONE
    assert site.sender.cancel("orders", mine) is Change.DONE
    assert (noted(s3), site.store.pending_count()) == ([], 0)
    assert site.run(6 * DAY, tick=3600) == []


@pytest.mark.parametrize("error_ms", [600_000, -600_000, 50])
def test_a_message_sent_by_a_wrong_clock_is_found_by_its_id(error_ms: int) -> None:
    """It tells a due time by that clock, where the queue service's was never learned."""
    site = S3Site()
    sender = QueueSender(_queues_of(site, error_ms, lambda queues, queue: None))
    mine = sender.send("orders", "hello", delay=3 * DAY).message_id or ""
    site.run(960)
    assert site.store.pending_count() == 1
    assert site.sender.cancel("orders", mine) is Change.DONE
    assert site.run(4 * DAY, tick=3600) == []


@pytest.mark.parametrize("error_ms", [600_000, -600_000])
def test_a_first_send_s_id_tells_the_due_time_by_the_broker_s_clock(error_ms: int) -> None:
    """SQS is asked whether the endpoint can be, and dates its answer, before the id is made up."""
    site = S3Site()
    queues = _queues_of(site, error_ms, InMemoryQueues.synchronise)
    mine = QueueSender(queues).send("orders", "hello", delay=3 * DAY).message_id or ""
    told = due_ms_of_id(mine)
    assert told is not None
    assert 0 <= site.clock.true_ms + 3 * DAY * 1000 - told <= 1000


class Interrupted(InMemoryS3):
    """Somebody else acts right before the first request that is about to be made."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], object]] = {}

    def delete_object(self, *, Key: str, **given: Any) -> dict[str, Any]:
        if "/ids/" in Key:
            self.before.pop("forget", bool)()
        return super().delete_object(Key=Key, **given)

    def list_objects_v2(self, **given: Any) -> dict[str, Any]:
        self.before.pop("list", bool)()
        return super().list_objects_v2(**given)


@pytest.mark.parametrize("leaves", ["cancelled", "released", "meanwhile"])
def test_a_message_sent_anew_keeps_its_look_up(leaves: str) -> None:
    """Its id was freed a moment ago, and what was noted of the former message is being forgotten; or the
    former is cancelled when the other had noted its due time, and not yet looked whether that is there."""
    s3 = Interrupted()
    site = S3Site(lookup=True, s3=s3)
    site.sender.send("orders", "old", due_at=site.due_at, message_id="x")
    later = utc(site.clock.true_ms + 9 * DAY * 1000)

    def anew() -> None:
        site.sender.send("orders", "new", due_at=later, message_id="x")

    if leaves == "meanwhile":
        s3.before["list"] = lambda: site.sender.cancel("orders", "x")
        anew()
    else:
        s3.before["forget"] = anew
    if leaves == "cancelled":
        assert site.sender.cancel("orders", "x") is Change.DONE
    elif leaves == "released":
        assert site.run(3 * DAY, tick=600) == ["old"]
    assert [message.body for message in site.store.pending(9)] == [b"new"]
    site.clock.advance(5)
    assert site.sender.cancel("orders", "x") is Change.DONE
    assert noted(s3) == []


def _queues_of(
    site: S3Site, error_ms: int, asked: Callable[[InMemoryQueues, QueueRef], None]
) -> InMemoryQueues:
    """The site's queues, as a process whose clock is wrong sees them."""

    class Local:
        def now_ms(self) -> int:
            return site.clock.true_ms + error_ms

        def monotonic(self) -> float:
            return site.clock.monotonic()

    class Queues(InMemoryQueues):
        def url(self, queue: QueueRef) -> str:
            asked(self, queue)
            return super().url(queue)

    queues = Queues(site.clock, local=Local())
    queues._queues = site.queues._queues
    return queues
