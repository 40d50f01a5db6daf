"""What needs a broker to itself: a power cut, an alarm, policies, a certificate, an old feature flag."""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pytest
from pika import BasicProperties

from sqsdelay.dispatching.dispatcher import DelayedDelivery, DispatchSettings
from sqsdelay.errors import QueueUnavailable, Unconfirmed
from sqsdelay.rabbitmq import (
    Problem,
    RabbitMqMessage,
    RabbitMqOutbox,
    RabbitMqSender,
    RabbitMqTimeouts,
    Topology,
    bind,
    create_timeout_queues,
    declare,
    verify,
)
from sqsdelay.rabbitmq.connection import parameters
from sqsdelay.rabbitmq.publisher import Publisher
from sqsdelay.stores import open_store
from sqsdelay.timeouts.manager import TimeoutManager, TimeoutSettings
from tests.acceptance.rabbitmq.broker import (
    REGISTERED_SECONDS,
    Broker,
    Inbox,
    due,
    manage,
    own_virtual_host,
)
from tests.messages import a_message
from tests.patience import PATIENCE_SECONDS, wait_for
from tests.services.rabbitmq import NEWER, RabbitNode

ANSWERED_SECONDS = 25
"""Less than a deadline of the commands, which are of 30 s."""
MOST_LOOKS = 20
"""RabbitMQ 4's delivery limit where a queue has none."""
SENT = 8_000
STORED = 1_000
HANDED_OVER = 32
"""Messages that a level hands over at a time: what may arrive twice then. Source: RabbitMQ's default of
``dead_letter_worker_consumer_prefetch``."""
IN_HAND = 20
"""Messages of one dispatch: what may arrive twice when the power goes."""


def look_often(broker: Broker, on: Topology) -> int:
    """Take a delayed message and give it back, twice as often as the limit; how often it was there."""
    with RabbitMqSender(
        broker.url, prefix=on.prefix, without_alternate_exchange=True, bind=False
    ) as sender:
        sender.send("orders", "looked at", delay=1000)
    with broker.channel() as channel:
        for number in range(2 * MOST_LOOKS):
            method, _, _ = channel.basic_get(on.level_name(9))
            if method is None:
                return number
            channel.basic_nack(method.delivery_tag, requeue=True)
    return 2 * MOST_LOOKS


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RabbitNode, list[Problem]]]:
    """A private node that speaks TLS, upgraded from of old; and what was wrong with it, in any order of tests
    before them all: its newer features were off."""
    folder = tmp_path_factory.mktemp("fragile")
    name = ["-subj", "/CN=sqsdelay test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-nodes"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(["openssl", "req", "-x509", "-days", "2", *key, *name, *files], check=True)
    flags = None if NEWER else "quorum_queue"
    private = RabbitNode(folder / "node", tls_folder=folder, feature_flags=flags)
    try:
        private.start()
        declare(private.url, Topology("acme"))
        found = verify(private.url, Topology("acme"), management_url=private.management_url)
        for problem in found:
            private.ctl(*shlex.split(problem.remedy)[1:])
        yield private, found
    finally:
        private.stop()


@pytest.fixture(scope="module")
def fragile(mended: tuple[RabbitNode, list[Problem]]) -> RabbitNode:
    """For those who kill it, and start it again."""
    return mended[0]


@pytest.fixture
def fragile_broker(fragile: RabbitNode, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A virtual host of the test's own on it."""
    name = f"sqsdelay-test {request.node.name}"
    with own_virtual_host(fragile.url, fragile.management_url, name) as broker:
        yield broker


@pytest.mark.skipif(NEWER is not None, reason="RabbitMQ 4 has no such flag to disable")
def test_a_disabled_stream_queue_flag_is_found(mended: tuple[RabbitNode, list[Problem]]) -> None:
    """Without it the broker dead-letters at most once; NServiceBus refuses such a broker as well."""
    node, (problem,) = mended
    assert problem.fatal
    assert problem.subject == "feature flag stream_queue"
    assert shlex.split(problem.remedy)[0] == "rabbitmqctl"
    assert verify(node.url, Topology("acme"), management_url=node.management_url) == []


def test_a_power_cut(fragile: RabbitNode, fragile_broker: Broker, tmp_path: Path) -> None:
    """Waiting messages keep their due times; the sender reconnects, and says what it is unsure of; the
    dispatcher and the timeout manager go on, and put nothing into the error queue."""
    broker, url = fragile_broker, fragile_broker.url
    acme = broker.ready("waiting", "sent", "stored", prefix="acme")
    bind(url, "waiting", acme)
    create_timeout_queues(url, "timed")
    time.sleep(REGISTERED_SECONDS)
    # A busy machine takes a minute to start the broker again: no critical error before that.
    settings = DispatchSettings(batch_size=IN_HAND, dispatch_breaker_seconds=PATIENCE_SECONDS)
    with (
        RabbitMqSender(url, prefix="acme", connect_seconds=180) as sender,
        closing(open_store(f"sqlite:///{tmp_path}/a.db", endpoint="stored")) as store,
        closing(RabbitMqOutbox(url, "stored")) as outbox,
        closing(open_store(f"sqlite:///{tmp_path}/b.db", endpoint="timed")) as timeouts,
        closing(RabbitMqTimeouts(url, "timed")) as transport,
        DelayedDelivery(store, outbox, settings=settings) as delivery,
        ThreadPoolExecutor() as threads,
    ):
        timeouts.set_up()
        delays = [RabbitMqMessage(str(n), delay=2 + n % 10) for n in range(200)]
        assert all(each.error is None for each in sender.send_many("waiting", delays))
        now_ms = time.time_ns() // 1_000_000
        with broker.channel() as channel:
            for n in range(100):
                headers = {"sqsdelay.Destination": "timed", "sqsdelay.DueAt": str(now_ms + 100 * n)}
                properties = BasicProperties(headers=headers, message_id=str(n))
                channel.basic_publish("", "timed.Timeouts", b"x", properties, mandatory=True)
        manager = TimeoutManager(timeouts, transport, settings=TimeoutSettings(wait_seconds=1))
        stop = threading.Event()
        managing = threads.submit(manager.run, stop)
        try:
            assert broker.wait_count("timed.Timeouts", 0) == 0
            now_ms = time.time_ns() // 1_000_000
            stored = [
                a_message(str(n), now_ms + 15 * n, to="stored", body=str(n).encode())
                for n in range(STORED)
            ]
            delivery.store(stored)
            wait_for(lambda: broker.count("stored") >= 100)
            messages = [RabbitMqMessage(str(n), message_id=str(n)) for n in range(SENT)]
            sending = threads.submit(sender.send_many, "sent", messages)
            wait_for(lambda: broker.count("sent") >= 1000)
            fragile.kill()
            assert store.pending_count() > 0
            fragile.start()
            sent = sending.result(timeout=PATIENCE_SECONDS)
            with (
                Inbox(url, "waiting") as waiting,
                Inbox(url, "stored") as released,
                Inbox(url, "timed") as timed,
            ):
                wait_for(lambda: len({each.body for each in released.arrivals}) == STORED)
                wanted = {str(n) for n in range(100)}
                # What arrived without a confirmation waits to be sent again, and is removed then.
                wait_for(
                    lambda: (
                        {each.properties.message_id for each in timed.arrivals} == wanted
                        and not timeouts.pending_count()
                    )
                )
                wait_for(lambda: len({each.body for each in waiting.arrivals}) == len(delays))
        finally:
            stop.set()
        managing.result(timeout=PATIENCE_SECONDS)
        assert sender.send("sent", "after", message_id="after").error is None

    assert {int(each.body) for each in waiting.arrivals} == set(range(200))
    assert len(waiting.arrivals) <= 200 + HANDED_OVER
    for inbox in (waiting, released, timed):
        assert min(each.late_ms for each in inbox.arrivals) >= 0
    assert len(released.arrivals) <= STORED + IN_HAND
    for name in ("stored", "timed"):
        assert broker.count(f"{name}-delay-error") == 0
    got = Counter(properties.message_id for _, properties, _ in broker.drain("sent"))
    unsure = {each.message_id for each in sent if isinstance(each.error, Unconfirmed)}
    confirmed = {each.message_id for each in sent if each.error is None}
    assert len(confirmed) + len(unsure) == SENT
    assert unsure
    assert confirmed <= set(got)
    assert set(got.values()) == {1}


def test_under_an_alarm_nothing_is_written_and_verify_and_bind_say_so_at_once(
    fragile: RabbitNode, fragile_broker: Broker
) -> None:
    """The broker reads no more from us: what was written would be in limbo, and is at most one message. No
    command waits for all its deadlines; what was to be sent on stays where it is."""
    acme = fragile_broker.ready("late", "blocked", prefix="acme")
    with closing(Publisher(parameters(fragile_broker.url))) as publisher:
        publisher.publish([due(acme.delivery_exchange, "late") for _ in range(20)])
    messages = [RabbitMqMessage(str(n)) for n in range(200)]
    with (
        RabbitMqSender(fragile_broker.url, connect_seconds=1, confirm_seconds=2) as sender,
        RabbitMqSender(fragile_broker.url) as patient,
    ):
        fragile.ctl("set_vm_memory_high_watermark", "absolute", "1")
        try:
            found: list[str] = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not found and time.monotonic() < deadline:  # the API's figures are seconds old
                began = time.monotonic()
                problems = verify(fragile_broker.url, acme, management_url=fragile.management_url)
                verified = time.monotonic() - began
                found = [each.text for each in problems if "memory alarm" in each.text]
            began = time.monotonic()
            with pytest.raises((QueueUnavailable, Unconfirmed), match="alarm"):
                bind(fragile_broker.url, "late", acme)
            bound = time.monotonic() - began
            results = sender.send_many("blocked", messages)
            waiting = threading.Thread(target=lambda: patient.send_many("blocked", messages))
            waiting.start()
        finally:
            time.sleep(1)
            fragile.ctl("set_vm_memory_high_watermark", "0.9")
        waiting.join()
    assert max(verified, bound) < ANSWERED_SECONDS
    unsent = [r.error for r in results if isinstance(r.error, QueueUnavailable)]
    assert len(unsent) >= len(messages) - 1
    assert "the broker blocks publishers" in str(unsent[0])
    assert "it was not sent" in str(unsent[0])
    assert 200 <= fragile_broker.wait_count("blocked", 201, seconds=10) <= 201
    assert 19 <= fragile_broker.wait_count(acme.undeliverable, 20, seconds=5) <= 20


def test_on_shared_infrastructure_a_policy_catches_them(
    fragile: RabbitNode, fragile_broker: Broker
) -> None:
    """Where NServiceBus may declare the exchange, verify warns and names the command that helps."""
    shared = fragile_broker.ready(prefix="nsb.v2")
    # The broker's figures are seconds old.
    wait_for(lambda: len(fragile_broker.problems(shared)) == 1)
    (warning,) = fragile_broker.problems(shared)
    assert not warning.fatal
    assert "block all others" in warning.text
    command, *arguments = shlex.split(warning.remedy)
    assert command == "rabbitmqctl"
    fragile.ctl(*arguments)
    assert fragile_broker.problems(shared) == []

    fragile_broker.queue("ghost")
    with RabbitMqSender(fragile_broker.url, prefix="nsb.v2") as sender:
        sender.send("ghost", "boo", delay=1)
        fragile_broker.delete_queue("ghost")
    assert fragile_broker.wait_count("nsb.v2.delay-undeliverable", 1) == 1


def test_a_policy_that_shortens_delays_is_found(
    fragile: RabbitNode, fragile_broker: Broker
) -> None:
    """The broker takes the smaller of the level's time and a policy's: messages would be early."""
    declare(fragile_broker.url)
    policy = (fragile.management_url, "policies", unquote(fragile_broker.virtual_host), "short")
    pattern = r"^sqsdelay\.delay-level-2"
    manage(*policy, pattern=pattern, definition={"message-ttl": 5000})
    try:

        def found() -> list[str]:
            problems = fragile_broker.problems(Topology())
            return [p.subject for p in problems if p.fatal and "message-ttl to 5000" in p.text]

        levels = [f"queue sqsdelay.delay-level-{level}" for level in range(20, 28)]
        # The broker puts a policy on one queue after another.
        wait_for(lambda: found() == levels)
    finally:
        manage(*policy, method="DELETE")


def test_a_policy_that_limits_deliveries_is_found_and_its_remedy_helps(
    fragile: RabbitNode, fragile_broker: Broker
) -> None:
    """The level's 21st look would send a message on to the next level: early. Exit 1, and a command."""
    declare(fragile_broker.url, Topology("nsb.v2"))
    policy = (fragile.management_url, "policies", unquote(fragile_broker.virtual_host), "few")
    manage(*policy, pattern=".*", definition={"delivery-limit": 20}, priority=1)

    def problems() -> list[str]:
        found = fragile_broker.problems(Topology("nsb.v2"))
        return [p.remedy for p in found if p.fatal and "delivery-limit to 20" in p.text]

    wait_for(lambda: len(problems()) == 28)
    assert look_often(fragile_broker, Topology("nsb.v2")) == MOST_LOOKS + 1
    verified = fragile_broker.cli(
        "--prefix", "nsb.v2", "--management", fragile_broker.management_url, "verify"
    )
    assert verified.returncode == 1
    command, *arguments = shlex.split(problems()[0])
    assert command == "rabbitmqctl"
    fragile.ctl(*arguments)
    wait_for(lambda: not problems())
    assert look_often(fragile_broker, Topology("nsb.v2")) == 2 * MOST_LOOKS


def test_looking_sends_nothing_on_early(fragile_broker: Broker) -> None:
    """Our own levels say how often: on RabbitMQ 4 the default is 20, and the next level the next place."""
    declare(fragile_broker.url)
    assert look_often(fragile_broker, Topology()) == 2 * MOST_LOOKS


def test_tls_and_credentials_by_url(
    fragile: RabbitNode, fragile_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``amqps://`` checks the certificate against the system's, or OpenSSL's usual SSL_CERT_FILE."""
    broker = fragile_broker
    broker.user("shop", password="p@ss/word")
    place = f"127.0.0.1:{fragile.tls_port}/{broker.virtual_host}"
    url = f"amqps://shop:p%40ss%2Fword@{place}"
    broker.queue("orders")
    secure = Broker(url, broker.management_url)
    refused = secure.cli("declare")
    assert refused.returncode == 1
    assert "TLS with RabbitMQ" in refused.stderr
    assert "its certificate is not trusted" in refused.stderr
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
    plain = broker.cli("--url", f"amqp://shop:x@{place}", "declare")
    assert "if the port uses TLS, write amqps://" in plain.stderr
    monkeypatch.setenv("SSL_CERT_FILE", f"{fragile.tls_folder}/cert.pem")
    for arguments in (["declare"], ["send", "orders", "--body", "hi", "--delay", "1"]):
        done = secure.cli(*arguments)
        assert done.returncode == 0, done.stderr
    assert broker.wait_count("orders", 1) == 1
