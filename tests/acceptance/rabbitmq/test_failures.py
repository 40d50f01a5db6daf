"""Lost connections and silence: nothing confirmed is lost, nothing is silently repeated."""

from __future__ import annotations

import _thread
import resource
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from unittest.mock import MagicMock, Mock, patch
from urllib.parse import unquote, urlsplit

import pytest
from pika import BasicProperties

from sqsdelay.core.message import WAS_DUE_AT
from sqsdelay.errors import ConfigurationError, QueueUnavailable, Unconfirmed
from sqsdelay.rabbitmq import (
    RabbitMqMessage,
    RabbitMqSender,
    RabbitMqSendResult,
    bind,
    declare,
    transfer,
)
from sqsdelay.rabbitmq.connection import Wire, parameters
from sqsdelay.rabbitmq.link import BindJob, Jobs, Link, Publication
from sqsdelay.rabbitmq.message import DELAY_HEADER
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.rabbitmq.topology import routing_key
from tests.acceptance.rabbitmq.broker import Broker, Inbox, check_whole, manage, until_confirmed
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.network import DeafProxy, HoldingProxy, TcpProxy


def test_a_confirm_that_never_comes(shared: Broker) -> None:
    """An error after the time set, not a wait for ever; the message is not repeated."""
    shared.ready("orders")
    with (
        DeafProxy(shared.port) as proxy,
        RabbitMqSender(shared.through(proxy), confirm_seconds=1) as sender,
    ):
        until_confirmed(sender, "heard")
        proxy.swallowing.set()
        started = time.monotonic()
        # The binding before it is the older one unanswered: either may be the first to be given up.
        told = (
            r"did not confirm the message within 1 s; it may have received it"
            r"|ended before the message was confirmed \(no answer\)"
        )
        with pytest.raises(Unconfirmed, match=told):
            sender.send("orders", "unheard")
        assert time.monotonic() - started >= 1
        proxy.swallowing.clear()
        until_confirmed(sender, "heard again")
        proxy.swallowing.set()
        sender.close()  # returns, though the broker does not answer
    bodies = [body for _, _, body in shared.drain("orders")]
    assert list(dict.fromkeys(bodies)) == [b"heard", b"unheard", b"heard again"]
    assert bodies.count(b"unheard") == 1


def test_what_is_submitted_while_a_dead_connection_is_dropped_waits_for_the_next(
    broker: Broker,
) -> None:
    """Taken by the old link, it would be answered by nobody, and its sender would wait for ever. Nor is it
    written to a connection that is being given up."""
    broker.queue("orders")
    unheard, waits, late = (Publication("", "orders", b"", BasicProperties()) for _ in range(3))
    jobs = Jobs()
    with DeafProxy(broker.port) as proxy, closing(Wire()) as wire:
        link = Link(parameters(broker.through(proxy)), wire, jobs, confirm_seconds=1)
        proxy.swallowing.set()

        def submit(*publications: Publication) -> None:
            jobs.add(publications)
            link.pump()

        wire.call_later(0.2, lambda: submit(unheard, waits))
        link.serve()
        assert isinstance(unheard.error, Unconfirmed)
        submit(late)
    assert list(jobs.publications) == [waits, late]


class _Unanswering(Link):
    def _on_answer(self, frame: object) -> None:
        """As of a queue without a leader."""


def test_a_process_that_stood_still_keeps_its_connection(broker: Broker) -> None:
    """What it writes when it goes on, before all else, has not waited for its answer since then."""
    broker.queue("orders")
    sent, jobs = Publication("", "orders", b"", BasicProperties()), Jobs()
    with closing(Wire()) as wire, patch("sqsdelay.rabbitmq.link.time", Mock()) as clock:
        clock.monotonic.return_value = 0.0
        link = Link(parameters(broker.url), wire, jobs, confirm_seconds=PATIENCE_SECONDS)
        sent.on_settled = link.end

        def go_on() -> None:
            clock.monotonic.return_value = 2 * PATIENCE_SECONDS
            jobs.add([sent])
            link.pump()
            link._watch()

        wire.call_later(0, go_on)
        link.serve()
    assert sent.error is None


def test_a_queue_that_does_not_answer_holds_up_no_other(shared: Broker) -> None:
    """Not even while the broker goes on to answer for bindings."""
    topology = shared.ready("orders", prefix="acme")
    stuck, other = (Publication(to, "orders", b"", BasicProperties()) for to in ("", "amq.topic"))
    jobs = Jobs(publications=deque([stuck, other]))
    with closing(Wire()) as wire:
        link = _Unanswering(parameters(shared.url), wire, jobs, confirm_seconds=PATIENCE_SECONDS)
        until = time.monotonic() + PATIENCE_SECONDS / 2

        def bind_on() -> None:
            if other.written or time.monotonic() > until:
                link.end()
            after = BindJob(topology.way("orders"))
            jobs.add([Publication("", "orders", b"", BasicProperties(), after=after)])
            link.pump()
            wire.call_later(0.05, bind_on)

        wire.call_later(0, bind_on)
        link.serve()
    assert other.written


def test_a_broker_that_cannot_be_reached() -> None:
    """Every message gets its error after the time set; nothing was sent."""
    with RabbitMqSender("amqp://guest:guest@127.0.0.1:1", connect_seconds=0.5) as sender:
        results = sender.send_many("orders", [RabbitMqMessage("a"), RabbitMqMessage("b", delay=5)])
        assert [type(r.error) for r in results] == [QueueUnavailable, QueueUnavailable]
        told = "127.0.0.1:1 (virtual host '/') cannot be reached: [Errno 111]"
        assert told in str(results[0].error)


def test_a_wrong_password_is_not_tried_for_long_nor_shown(broker: Broker) -> None:
    """No later attempt would help."""
    url = broker.url.replace("guest:guest", "guest:sesame")
    started = time.monotonic()
    with (
        RabbitMqSender(url, connect_seconds=PATIENCE_SECONDS) as sender,
        pytest.raises(ConfigurationError, match="refused the user 'guest'") as caught,
    ):
        sender.send("orders", "hi")
    assert time.monotonic() - started < PATIENCE_SECONDS / 2
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("of", ["user-limits", "vhost-limits"])
def test_a_connection_limit_is_not_a_wrong_password(broker: Broker, of: str) -> None:
    """It passes: the sender tries for as long as for a broker that is away, and says what is reached."""
    url = broker.user("few")
    whose = "few" if of == "user-limits" else unquote(broker.virtual_host)
    manage(broker.management_url, of, whose, "max-connections", value=0)
    try:
        with pytest.raises(QueueUnavailable, match=r"connection limit \(0\) is reached"):
            declare(url)
        told = pytest.raises(QueueUnavailable, match="raise the limit")
        with RabbitMqSender(url, connect_seconds=0.5) as sender, told:
            sender.send("orders", "hi")
    finally:
        manage(broker.management_url, of, whose, "max-connections", method="DELETE")


@pytest.mark.parametrize("most", [0, 1])
def test_a_channel_limit_is_named(broker: Broker, most: int) -> None:
    """Also of the channel that binds, which is opened when the first delayed message comes."""
    broker.ready("orders")
    url = broker.user("narrow")
    manage(broker.management_url, "user-limits", "narrow", "max-channels", value=most)
    told = pytest.raises(QueueUnavailable, match=rf"number of channels .* limit of \({most}\)")
    with RabbitMqSender(url, connect_seconds=0.5) as sender, told:
        sender.send("orders", "hi", delay=5)


def test_a_closed_sender_says_so() -> None:
    """And closing one that never sent anything is fine."""
    sender = RabbitMqSender("amqp://guest:guest@127.0.0.1:1")
    sender.close()
    with pytest.raises(ConfigurationError, match="the sender is closed"):
        sender.send("orders", "hi")


def test_an_interrupted_call_sends_nothing_later() -> None:
    """Nobody would hear of it, and whoever repeats the call would send it twice. It waits, or not yet."""
    begins, sends = (Publication("", "orders", b"", BasicProperties()) for _ in range(2))
    away = parameters("amqp://guest:guest@127.0.0.1:1")
    with closing(Publisher(away, connect_seconds=10 * PATIENCE_SECONDS)) as publisher:
        handing_in = MagicMock(**{"__exit__.side_effect": KeyboardInterrupt})
        with patch.object(publisher, "_lock", handing_in), pytest.raises(KeyboardInterrupt):
            publisher.publish([begins])
        wait_for(lambda: begins.settled)

        def interrupt() -> None:
            wait_for(lambda: publisher._jobs)
            _thread.interrupt_main()

        with ThreadPoolExecutor() as threads:
            threads.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                publisher.publish([sends])
        wait_for(lambda: sends.settled)


def test_closing_while_it_connects_ends_the_connection(broker: Broker) -> None:
    """And what waited for it was not sent."""
    broker.queue("orders")
    with HoldingProxy(broker.port) as proxy, ThreadPoolExecutor() as threads:
        sender = RabbitMqSender(broker.through(proxy))
        proxy.hold()
        sending = threads.submit(sender.send_many, "orders", [RabbitMqMessage("x")])
        assert proxy.held.wait(PATIENCE_SECONDS)
        closing_it = threads.submit(sender.close)
        wait_for(lambda: sender._publisher._ending)
        proxy.let_go()
        closing_it.result(PATIENCE_SECONDS)
        (result,) = sending.result(PATIENCE_SECONDS)
    assert "was closed before the message was sent" in str(result.error)
    assert broker.count("orders") == 0


def test_no_thread_and_no_file_left_is_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Said of each message, and over once there is one again: nobody waits for a thread that did not start,
    and a thread that waits needs no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    closed = "amqp://guest:guest@127.0.0.1:1"
    with RabbitMqSender(closed, connect_seconds=0.5) as sender, RabbitMqSender(closed) as other:
        size = threading.stack_size(2**45)
        try:
            with pytest.raises(QueueUnavailable, match="can't start new thread"):
                sender.send("orders", "hi")
        finally:
            threading.stack_size(size)
        with pytest.raises(QueueUnavailable, match="Errno 111"):
            sender.send("orders", "hi")
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            for each in (sender, other):
                with pytest.raises(QueueUnavailable, match="Too many open files"):
                    each.send("orders", "hi")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with pytest.raises(QueueUnavailable, match="Errno 111"):
            sender.send("orders", "hi")
    assert [each for each in caplog.records if each.name.startswith("sqsdelay")] == []


def test_many_threads_share_one_sender(shared: Broker) -> None:
    """Each gets its own results, over one connection."""
    shared.ready("orders")
    with RabbitMqSender(shared.url) as sender, ThreadPoolExecutor(8) as threads:

        def work(name: int) -> list[RabbitMqSendResult]:
            many = [RabbitMqMessage("x", message_id=f"{name}.{n}") for n in range(50)]
            one = sender.send("orders", "x", message_id=f"{name}")
            return [one, *sender.send_many("orders", many)]

        results = [each for done in threads.map(work, range(8)) for each in done]
    assert [r.error for r in results] == [None] * (8 * 51)
    got = [properties.message_id for _, properties, _ in shared.drain("orders")]
    assert sorted(got) == sorted(str(r.message_id) for r in results)


def test_one_bad_message_fails_alone(broker: Broker) -> None:
    """A message beyond the broker's own limits would end the channel for all."""
    broker.queue("orders")
    with RabbitMqSender(broker.url) as sender:
        bodies = ("good", b"x" * (16 * 1024 * 1024 + 1), "good too")
        results = sender.send_many("orders", [RabbitMqMessage(body) for body in bodies])
    assert [type(r.error).__name__ for r in results] == ["NoneType", "MessageTooLarge", "NoneType"]
    assert broker.wait_count("orders", 2) == 2


def test_a_transfer_keeps_the_time_left(shared: Broker) -> None:
    """Due when it was due before; a destination missing at the target keeps its messages where they were."""
    old, new = (shared.ready(prefix=prefix) for prefix in ("old", "new"))
    for name in ("orders", "gone"):
        shared.queue(name)
    with RabbitMqSender(shared.url, prefix="old") as sender, Inbox(shared.url, "orders") as inbox:
        due = {"due-ms": str(time.time() * 1000 + 12_000)}
        sender.send_many(
            "orders", [RabbitMqMessage(str(n), delay=12, headers=due) for n in range(50)]
        )
        sender.send("orders", "years", delay=10**8)
        sender.send("gone", "stays", delay=1000)
        shared.delete_queue("gone")
        with shared.channel() as channel:  # as others may
            headers = {WAS_DUE_AT: str(int(time.time()) * 1000 + 10**6)}
            properties = BasicProperties(headers=headers)
            level = old.level_name(9)
            channel.queue_declare("locked", exclusive=True)
            for name in ("a.#", "locked"):
                channel.basic_publish(level, routing_key(1000, name), b"stays", properties)
            channel.basic_publish("", level, b"no key", properties)
            time.sleep(1)
            done = transfer(shared.url, shared.url, source=old, target=new, force=True)
        assert done.moved == 51
        for reason in ("no queue 'gone'", "wildcard", "LOCKED", "its routing key is not"):
            assert [count for told, count in done.left.items() if reason in told] == [1]
        arrivals = inbox.wait(50)
    check_whole(arrivals, 50)
    # The second delay is what was left of the first.
    assert all(a.properties.headers[DELAY_HEADER] <= 11 for a in arrivals)
    assert shared.wait_count("old.delay-level-09", 4) == 4
    assert shared.count("new.delay-level-26") == 1


def test_a_transfer_ends_where_its_target_cannot_be_reached(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further 30 messages would wait for it as long. None is lost."""
    old = shared.ready("orders", prefix="old")
    with RabbitMqSender(shared.url, prefix="old") as sender:
        sender.send_many("orders", [RabbitMqMessage("x", delay=1000)] * 90)
    hasty = partial(RabbitMqSender, connect_seconds=0.5)
    monkeypatch.setattr("sqsdelay.rabbitmq.administration.RabbitMqSender", hasty)
    with pytest.raises(QueueUnavailable, match="cannot be reached"):
        transfer(shared.url, "amqp://guest:guest@127.0.0.1:1", source=old, force=True)
    assert shared.wait_count(old.level_name(9), 90) == 90


def test_a_sender_goes_to_the_next_node(shared: Broker) -> None:
    """One is not there, one goes away: what is not yet written goes to the third."""
    shared.ready("orders")
    parts = urlsplit(shared.url)
    with TcpProxy(parts.port or 0) as second, TcpProxy(parts.port or 0) as third:
        hosts = f"127.0.0.1:1,127.0.0.1:{second.port},127.0.0.1:{third.port}"
        url = f"amqp://guest:guest@{hosts}{parts.path}"
        with RabbitMqSender(url) as sender:
            assert sender.send("orders", "one", delay=1).error is None
            second.down()
            assert sender.send("orders", "two", delay=1).error is None
        bind(url, "orders")
    assert shared.wait_count("orders", 2) == 2


def test_tls_to_a_port_without_it_says_so(broker: Broker) -> None:
    """At once, and not as a broker that cannot be reached for 30 s."""
    url = broker.url.replace("amqp://", "amqps://")
    told = pytest.raises(ConfigurationError, match="TLS with RabbitMQ")
    with RabbitMqSender(url) as sender, told:
        sender.send("orders", "hi")
