"""The command line on moto: what it takes, prints and answers."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from rich.table import Table

from sqsdelay.cli import app
from sqsdelay.cli.followed import Run
from sqsdelay.cli.prove import _messages
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import Message, Route
from sqsdelay.core.schedule_input import SOONEST_SECONDS
from sqsdelay.errors import InvalidSetting
from sqsdelay.sqs import DelaySender, SqsQueues
from tests.patience import PATIENCE_SECONDS
from tests.services.endpoints import in_queue
from tests.services.processes import run, typed

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli() -> Iterator[Cli]:
    """``sqsdelay`` on moto."""
    stopping = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with mock_aws():
        yield typed
    for number, handler in stopping.items():
        signal.signal(number, handler)  # a worker takes them


def test_the_version_is_the_installed_packages(cli: Cli) -> None:
    """`sqsdelay --version` is what a bug report begins with."""
    assert cli("--version") == (0, f"sqsdelay {version('sqsdelay')}\n", "")


def test_endpoint_create_makes_the_three_queues_and_is_idempotent(cli: Cli) -> None:
    """High-throughput FIFO, 900 s, 14 days, encrypted; a second time there is nothing to do."""
    code, out, _ = cli("endpoint", "create", "orders", "--json")
    assert code == 0
    assert json.loads(out)["created"] == ["orders", "orders-delay-error", "orders-delay.fifo"]
    client = boto3.client("sqs")
    url = client.get_queue_url(QueueName="orders-delay.fifo")["QueueUrl"]
    found: Any = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    attributes = found["Attributes"]
    assert {name: attributes.get(name) for name in (
        "FifoQueue", "DelaySeconds", "MessageRetentionPeriod", "VisibilityTimeout",
        "DeduplicationScope", "FifoThroughputLimit", "SqsManagedSseEnabled", "RedrivePolicy",
    )} == {
        "FifoQueue": "true", "DelaySeconds": "900", "MessageRetentionPeriod": "1209600",
        "VisibilityTimeout": "180", "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId", "SqsManagedSseEnabled": "true",
        "RedrivePolicy": None,
    }  # fmt: skip
    code, out, _ = cli("endpoint", "create", "orders")
    assert (code, out.count("exists")) == (0, 3)


def test_endpoint_check_says_what_is_wrong_and_how_to_mend_it(cli: Cli) -> None:
    """What NServiceBus refuses is a problem, each with a command; exit code 1."""
    cli("endpoint", "create", "orders")
    assert cli("endpoint", "check", "orders")[0] == 0
    client = boto3.client("sqs")
    url = client.get_queue_url(QueueName="orders-delay.fifo")["QueueUrl"]
    client.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})
    dead = "arn:aws:sqs:us-east-1:123456789012:dead.fifo"
    redrive = {"deadLetterTargetArn": dead, "maxReceiveCount": 3}
    client.set_queue_attributes(
        QueueUrl=url,
        Attributes={
            "DelaySeconds": "10", "MessageRetentionPeriod": "3600", "VisibilityTimeout": "301",
            "FifoThroughputLimit": "perQueue", "RedrivePolicy": json.dumps(redrive),
        },
    )  # fmt: skip
    client.delete_queue(QueueUrl=client.get_queue_url(QueueName="orders-delay-error")["QueueUrl"])
    code, out, _ = cli("endpoint", "check", "orders", "--json")
    problems = json.loads(out)["problems"]
    assert code == 1
    assert [problem["text"][:30] for problem in problems] == [
        "it does not exist", "its delay of 10 s is shorter t", "it keeps messages 3600 s, less",
        "it has a redrive policy, which", "its visibility timeout of 301 ", "it is not high-throughput FIFO",
    ]  # fmt: skip
    assert problems[0]["remedy"] == "sqsdelay endpoint create orders"
    assert all("aws sqs set-queue-attributes" in problem["remedy"] for problem in problems[1:])
    assert problems[1]["remedy"].endswith(", or use a hop of 10 s (--hop 10)")
    code, out, _ = cli("endpoint", "check", "orders")
    assert code == 1
    assert "redrive policy" in out


def test_endpoint_create_refuses_to_leave_an_unfit_queue(cli: Cli) -> None:
    """An existing delay queue is not altered: the difference is told instead."""
    cli("endpoint", "create", "orders", "--hop", "60")
    code, _, err = cli("endpoint", "create", "orders")
    assert code == 1
    assert "its delay of 60 s is shorter than the hop of 900 s" in err
    code, _, err = cli("endpoint", "create", "other", "--hop", "901")
    assert code == 2
    assert "--hop 901; use 1 to 900" in err


def test_a_fifo_endpoint_has_four_queues(cli: Cli) -> None:
    """The FIFO queue itself, a due queue that takes message timers, and the two there always are."""
    code, out, _ = cli("endpoint", "create", "orders.fifo", "--json")
    assert code == 0
    assert json.loads(out)["created"] == [
        "orders.fifo", "orders-delay-error", "orders-due", "orders-delay.fifo",
    ]  # fmt: skip
    assert cli("endpoint", "create", "orders.fifo")[1].count("exists") == 4
    assert cli("endpoint", "check", "orders.fifo")[0] == 0
    client = boto3.client("sqs")
    url = client.get_queue_url(QueueName="orders-due")["QueueUrl"]
    client.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    code, out, _ = cli("endpoint", "check", "orders.fifo", "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["subject"]) == (1, "orders-due")
    assert problem["text"].startswith("it keeps messages 60 s, less than")
    client.delete_queue(QueueUrl=url)
    code, out, _ = cli("endpoint", "check", "orders.fifo", "--json")
    assert json.loads(out)["problems"][0]["text"] == "it does not exist"


@pytest.mark.parametrize(
    ("first", "second"), [("orders", "orders.fifo"), ("orders.fifo", "orders")]
)
def test_endpoints_of_one_name_are_refused(cli: Cli, first: str, second: str) -> None:
    """orders and orders.fifo would share a delay queue: the second one is refused, nothing is made."""
    cli("endpoint", "create", first)
    code, _, err = cli("endpoint", "create", second)
    assert code == 1
    assert f"{second} would share the delay queue orders-delay.fifo with {first}" in err
    queues = boto3.client("sqs").list_queues()["QueueUrls"]
    assert second not in {url.rpartition("/")[2] for url in queues}
    code, out, _ = cli("endpoint", "check", second, "--json")
    assert (code, json.loads(out)["problems"][0]["remedy"]) == (1, "use another name")


def test_send_one_message(cli: Cli) -> None:
    """A body with a written delay; the answer names id, route and due time."""
    cli("endpoint", "create", "orders")
    code, out, _ = cli("send", "orders", "--body", "x", "--delay", "32m5s", "--message-id", "m-1")
    assert code == 0
    assert re.fullmatch(r"m-1  delay-queue  due \S+T\S+:\d\d\.\d{3}\+00:00\n", out)
    past = ("--due-at", "2020-01-01T00:00:00Z")
    code, out, _ = cli("send", "orders", "--body", "y", *past, "--json")
    assert json.loads(out)["route"] == "direct"
    assert [message["Body"] for message in in_queue(boto3.client("sqs"), "orders")] == ["y"]


def test_send_a_file_reports_bad_lines_and_sends_the_rest(cli: Cli, tmp_path: Path) -> None:
    """Bad lines are named by number on stderr; the rest is sent; exit code 1."""
    cli("endpoint", "create", "orders")
    file = tmp_path / "messages.jsonl"
    file.write_bytes(
        b'{"body": "a"}\n'
        b"not json\n"
        b"\n"
        b'{"body": {"order": 7}, "attributes": {"n": 1, "b": {"DataType": "Binary", '
        b'"BinaryValue": "AP8="}}}\n'
        b'{"body": "b", "delay": -1}\n'
        b'{"body": "c", "dely": 5}\n'
        b'{"body": "\xff"}\n'
        b'{"body": "d", "delay": "1h", "message_id": "d-1"}\n'
        b'{"body": "e", "body_repeat": 2}\n'
        b'{"body": "eeee", "body_repeat": 1000000}\n'
        b"[1]\n"
    )
    code, out, err = cli("send", "orders", "--file", str(file), "--json")
    results = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [r["line"] for r in results if r["error"] is not None] == [2, 5, 6, 7, 10, 11]
    assert "line 2: not JSON" in err
    assert "line 5: delay=-1 is negative" in err
    assert "line 6: unknown field 'dely'" in err
    assert "line 7: body contains the character U+DCFF" in err
    assert "4 sent, 6 not sent" in err
    assert "" not in err.splitlines()
    arrived = {
        message["Body"]: message.get("MessageAttributes")
        for message in in_queue(boto3.client("sqs"), "orders")
    }
    assert arrived == {
        "a": None,
        '{"order":7}': {
            "n": {"StringValue": "1", "DataType": "Number"},
            "b": {"BinaryValue": b"\x00\xff", "DataType": "Binary"},
        },
        "ee": None,
    }


def test_lines_without_a_delay_take_the_one_given(cli: Cli, tmp_path: Path) -> None:
    """--delay serves the lines that name neither delay nor due time."""
    cli("endpoint", "create", "orders")
    file = tmp_path / "messages.jsonl"
    file.write_text('{"body": "a"}\n{"body": "b", "delay": 0}\n')
    code, out, _ = cli("send", "orders", "--file", str(file), "--delay", "1h", "--json")
    assert code == 0
    assert [json.loads(line)["route"] for line in out.splitlines()] == ["delay-queue", "direct"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["send", "orders", "--body", "x", "--delay", "soon"], 2, "delay 'soon' is not valid"),
        (["send", "orders", "--body", "x", "--due-at", "2027-01-01"], 2, "has no time zone"),
        (["send", "orders", "--body", "x", "--delay", "1h"], 1, "orders-delay.fifo does not exist"),
        (["send", "orders"], 2, "give either --body or --file"),
        (["send", "orders", "--body", "x", "--delay", "1", "--due-at", "2"], 2, "either --delay or"),
        (["send", "orders.fifo", "--body", "x"], 2, "FIFO queue"),
        (["send", "orders", "--file", "/nonexistent"], 2, "No such file"),
        (["consume", "nowhere", "--hop", "2"], 1, "sqsdelay endpoint create nowhere --hop 2"),
        (["prove", "nowhere", "--hop", "2"], 1, "sqsdelay endpoint create nowhere --hop 2"),
        (["errors", "retry", "orders"], 2, "give either --message-id or --all"),
        (["errors", "retry", "orders", "--all", "--message-id", "x"], 2, "give either --message-id"),
        (["errors", "list", "orders", "--limit", "0"], 2, "--limit"),
        (["list", "errors"], 2, "errors list"),
        (["errors", "orders", "list"], 2, "errors list orders"),
        (["rabbitmq", "declare", "--url", "x"], 2, "before the command: sqsdelay rabbitmq --url …"),
        (["status", "orders", "--region", "x"], 2, "before the command: sqsdelay --region …"),
        (["--json", "status", "orders"], 2, "behind the command: sqsdelay status … --json"),
        (["consume", "orders", "--receivers", "0"], 2, "--receivers 0; use 1 or more"),
        (["consume", "orders", "--wait", "21"], 2, "--wait 21; use 0 to 20"),
        (["receive", "nowhere"], 1, "queue nowhere does not exist"),
        (["demo", "--file", "/nonexistent"], 2, "No such file"),
        (["demo", "--file", "{traced}"], 2, "line 1: trace_header=5 is not an X-Ray trace header"),
        (["pending", "orders", "--store", "mysql://x/y"], 2, "is not valid; give sqlite:///FILE"),
        (["pending", "orders", "--store", "sqlite:///missing.db"], 1, "there is no SQLite file"),
        (["pending", "orders", "--store", "dynamodb://t123?x=1"], 2, "are not understood"),
        (["pending", "orders", "--store", "scheduler://g?role=me"], 2, "is not a role's ARN"),
        (["pending", "orders", "--store", "dynamodb://t123", "--after", "x"], 2, "--after"),
        (["rabbitmq", "--url", "http://x", "verify"], 2, "does not start with amqp://"),
        (["endpoint", "create", "orders", "--hop", "901"], 2, "--hop 901"),
        (["cancel", "orders", "", "--store", "sqlite:///x.db"], 2, "'message_ids': '' cannot be"),
        (["reschedule", "orders", "", "--store", "sqlite:///x.db"], 2, "'message_id': '' cannot be"),
        (["demo", "--file", "{true}"], 2, "line 1: delay 'true' is not valid"),
        (
            ["send", "arn:aws:sqs:eu-west-1:123456789012:orders", "--body", "x"],
            2,
            "the region eu-west-1, and the client calls us-east-1; use a client of eu-west-1 "
            "(sqsdelay --region eu-west-1)",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_an_exit_code(
    cli: Cli, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    """No stack trace: what is wrong, and 1 for refused, 2 for a bad value."""
    boto3.client("sqs").create_queue(QueueName="orders")
    (tmp_path / "traced").write_text('{"body": "x", "trace_header": 5}')
    (tmp_path / "true").write_text('{"body": "x", "delay": true}')
    got, _, err = cli(*(re.sub(r"{(\w+)}", rf"{tmp_path}/\1", each) for each in arguments))
    assert (got, "Traceback" in err) == (code, False)
    assert message in err


def test_receive_prints_what_arrives(cli: Cli) -> None:
    """A plain message shows no lateness, for it carries no due time; it stays unless it is to be deleted."""
    client = boto3.client("sqs")
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.send_message(
        QueueUrl=url,
        MessageBody="relayed",
        MessageAttributes={
            "sqsdelay.MessageId": {"DataType": "String", "StringValue": "m-1"},
            "sqsdelay.DueAt": {"DataType": "String", "StringValue": "1000"},
            "b": {"DataType": "Binary", "BinaryValue": b"\x00"},
        },
    )
    code, out, _ = cli("receive", "orders", "--count", "1", "--json", "--delete")
    message = json.loads(out)
    assert (code, message["message_id"], message["late_ms"] > 0) == (0, "m-1", True)
    assert 0 <= message["waited_ms"] < PATIENCE_SECONDS * 1000
    assert message["attributes"]["b"] == {"DataType": "Binary", "BinaryValue": "AA=="}
    client.send_message(QueueUrl=url, MessageBody="plain")
    for options in ((), ("--delete",)):
        code, out, _ = cli("receive", "orders", "--count", "1", *options)
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", out.split()[0])
        assert out.split()[1] == "-"
        assert out.rstrip().endswith("plain")
    assert cli("receive", "orders", "--count", "1", "--idle", "1")[1] == ""


def test_receive_takes_no_more_than_asked(cli: Cli) -> None:
    """What is not shown is not deleted."""
    client = boto3.client("sqs")
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    for body in "abc":
        client.send_message(QueueUrl=url, MessageBody=body)
    assert len(cli("receive", "orders", "--count", "1", "--delete", "--json")[1].splitlines()) == 1
    assert len(cli("receive", "orders", "--count", "2", "--json")[1].splitlines()) == 2


def test_a_run_deletes_its_own_messages_only(cli: Cli) -> None:
    """What others send meanwhile is left in the queue, and can be read at once."""
    cli("endpoint", "create", "orders")
    endpoint, client = Endpoint.parse("orders"), boto3.client("sqs")
    run = Run(endpoint, SqsQueues(client))
    own = [Message(str(n), message_id=f"own-{n}") for n in range(3)]
    run.sent(own, DelaySender(client).send_many("orders", own))
    assert cli("send", "orders", "--body", "foreign")[0] == 0
    settings: Any = {"patience_seconds": 60, "second_copy_seconds": 1, "wait_seconds": 0}
    run.follow(lambda _: Table(), **settings, quiet=True)
    summary = run.summary()
    assert (summary.delivered, summary.lost, summary.altered) == (3, 0, 0)
    assert [each["Body"] for each in in_queue(boto3.client("sqs"), "orders")] == ["foreign"]


def test_a_foreign_due_time_is_no_crash(cli: Cli) -> None:
    """Anybody may have put anything in an attribute."""
    client = boto3.client("sqs")
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageAttributes={"sqsdelay.DueAt": {"DataType": "String", "StringValue": "9" * 5000}},
    )
    code, out, _ = cli("receive", "orders", "--count", "1", "--json")
    assert (code, json.loads(out)["late_ms"]) == (0, None)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"AWS_DEFAULT_REGION": None}, "region; set AWS_DEFAULT_REGION and AWS_PROFILE"),
        ({"AWS_PROFILE": "nobody"}, "found; set AWS_DEFAULT_REGION and AWS_PROFILE"),
        (
            {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
            "set AWS_PROFILE or AWS_ACCESS_KEY_ID",
        ),
    ],
)
def test_missing_aws_settings_are_one_line(variables: dict[str, str | None], message: str) -> None:
    """As common as typing errors, and told as plainly."""
    env = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name, value in variables.items():
        env.pop(name) if value is None else env.update({name: value})
    done = run("send", "orders", "--body", "x", env=env)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert message in done.stderr


def test_attributes_of_each_kind_are_sent(cli: Cli) -> None:
    """As in the AWS CLI a Binary value is base64; a String needs no type."""
    boto3.client("sqs").create_queue(QueueName="orders")
    given = ("tenant=acme=b", "tries:Number=3", "key:Binary.x=AAE=")
    options = [word for each in given for word in ("--attribute", each)]
    assert cli("send", "orders", "--body", "x", *options)[0] == 0
    (message,) = in_queue(boto3.client("sqs"), "orders")
    found = message["MessageAttributes"]
    assert found["tenant"] == {"DataType": "String", "StringValue": "acme=b"}
    assert found["tries"] == {"DataType": "Number", "StringValue": "3"}
    assert found["key"] == {"DataType": "Binary.x", "BinaryValue": b"\x00\x01"}
    for bad, told in (
        (["tenant"], "is not NAME=VALUE"),
        (["a=1", "a=2"], "given twice"),
        (["a:Binary=!"], "not base64"),
        (["a:Date=1"], "a"),
    ):
        options = [word for each in bad for word in ("--attribute", each)]
        code, _, err = cli("send", "orders", "--body", "x", *options)
        assert (code, told in err) == (2, True), err


def test_region_and_profile_are_those_of_the_options(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They win over the environment, keys in it included, and leave it as it was."""
    boto3.client("sqs", region_name="eu-west-1").create_queue(QueueName="there")
    assert cli("receive", "there", "--idle", "1")[0] == 1
    assert cli("--region", "eu-west-1", "receive", "there", "--idle", "1")[0] == 0
    assert os.environ["AWS_DEFAULT_REGION"] == "us-east-1"
    keys = "aws_access_key_id = k\naws_secret_access_key = s\n"
    profile = f"[profile far]\nregion = eu-west-1\n{keys}"
    (tmp_path / "config").write_text(profile)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # a command is a process of its own
    code, _, err = cli("--profile", "far", "--verbose", "receive", "there", "--idle", "1")
    assert code == 0
    assert "in config file" in err
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    code, _, err = cli("--profile", "nobody", "receive", "there")
    assert (code, "nobody" in err, "--profile" in err) == (1, True, True)


def test_verbose_shows_requests_and_an_errors_cause(cli: Cli) -> None:
    """On stderr, and only when asked for; the body is nobody's business."""
    absent = ("send", "absent", "--body", "hidden")
    quiet, loud = cli(*absent), cli("--verbose", *absent)
    assert (quiet[0], loud[0]) == (1, 1)
    assert quiet[2].count("\n") == 1
    assert "Traceback" in loud[2]
    assert "QueueDoesNotExist" in loud[2]
    assert loud[2].endswith(quiet[2])
    assert "hidden" not in loud[2]
    assert cli("send", "absent", "--body", "x") == quiet


def test_an_endpoint_is_created_by_its_name(cli: Cli) -> None:
    """A URL or ARN may lead to another account, where these credentials create nothing."""
    arn = "arn:aws:sqs:us-east-1:999999999999:orders"
    for endpoint in (arn, "http://localhost/123456789012/orders"):
        code, _, err = cli("endpoint", "create", endpoint)
        assert code == 2
        assert "create it by its name" in err
    assert boto3.client("sqs").list_queues().get("QueueUrls") is None


def test_every_command_has_help(cli: Cli) -> None:
    """Each command says what it does."""
    code, out, _ = cli("--help")
    assert code == 0
    for command in app.registered_commands:
        assert command.callback is not None
        assert command.callback.__doc__
        assert (command.name or command.callback.__name__.replace("_", "-")) in out
    for name, words in (
        ("send", "--due-at are for lines that have neither"),
        ("send", "SQSDELAY_STORE"),
        ("consume", "workers send it to the error queue"),
        ("dispatch", "cannot be cancelled"),
        ("console", "may be repeated"),
    ):
        assert words in " ".join(cli(name, "--help")[1].split())


def test_a_proof_stores_what_schedules_take() -> None:
    """They take nothing that is due within half an hour, and sending takes a while."""
    parked = _messages(40, 900, 1920, fifo=False, soonest=SOONEST_SECONDS)[Route.STORE]
    assert len(parked) == 20
    assert {each.delay for each in parked} <= {*range(SOONEST_SECONDS + 60, 1921)}
    for longest in (1800, 1860):
        with pytest.raises(InvalidSetting, match="in 1800 s or later; use 1861 or more"):
            _messages(40, 900, longest, fifo=False, soonest=SOONEST_SECONDS)
    assert _messages(4, 900, 1861, fifo=False, soonest=SOONEST_SECONDS)[Route.STORE]
