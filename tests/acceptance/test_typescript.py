"""The npm package as packed, and docs/senders-contract.md: what Node sends arrives on time."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sqsdelay import DelayConsumer
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message_id import due_ms_of_id
from sqsdelay.core.wire import DELAY_SECONDS, MESSAGE_ID
from sqsdelay.limits import DELAY_QUEUE_SUFFIX, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.sqs import create_endpoint
from sqsdelay.testing import LocalAws
from tests.guides.page import ROOT, Block, blocks
from tests.patience import PATIENCE_SECONDS
from tests.services.processes import environment

PAGE = "docs/senders-contract.md"
HOP = 1


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project: the packed package in its node_modules, beside the SDK."""
    folder = tmp_path_factory.mktemp("project")
    modules = folder / "node_modules"
    modules.mkdir()
    run("npm", "pack", "--silent", "--pack-destination", str(folder), cwd=ROOT / "typescript")
    (packed,) = folder.glob("sqsdelay-*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(modules, filter="data")
    (modules / "package").rename(modules / "sqsdelay")
    for name in ("@aws-sdk", "@types"):
        (modules / name).symlink_to(ROOT / "node_modules" / name)
    return folder


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(env or {}) | {"NODE_OPTIONS": "--disable-warning=Warning"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    return done.stdout


class Site:
    """An endpoint with a short hop, relayed by a consumer."""

    def __init__(self, local_aws: LocalAws, name: str) -> None:
        self.aws = local_aws
        self.name = name
        self.sqs = local_aws.client("sqs")
        create_endpoint(self.sqs, Endpoint.parse(name), hop_seconds=HOP)
        self.url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]

    def waiting(self) -> dict[str, Any]:
        """The one message in the delay queue, once it is visible there."""
        url = self.sqs.get_queue_url(QueueName=f"{self.name}{DELAY_QUEUE_SUFFIX}")["QueueUrl"]
        (message,) = self._receive(url)
        return message

    def arrived(self, count: int) -> dict[str, dict[str, Any]]:
        """What arrives, by its body, each with the time it came."""
        found: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, found
            for message in self._receive(self.url):
                self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
                assert message["Body"] not in found
                found[message["Body"]] = message | {"at": datetime.now(UTC)}
        return found

    def _receive(self, url: str) -> list[dict[str, Any]]:
        answer = self.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=5,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        return list(answer.get("Messages", []))


@pytest.fixture
def site(local_aws: LocalAws) -> Site:
    return Site(local_aws, f"node-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def relayed(site: Site) -> Iterator[Site]:
    stop = threading.Event()
    consumer = DelayConsumer(site.name, client=site.sqs, hop_seconds=HOP, wait_seconds=1)
    relaying = threading.Thread(target=consumer.run, args=(stop,))
    relaying.start()
    yield site
    stop.set()
    relaying.join(PATIENCE_SECONDS)


def attribute(message: dict[str, Any], name: str) -> str:
    return str(message["MessageAttributes"][name]["StringValue"])


def test_the_packed_package_keeps_the_contract(project: Path) -> None:
    """Every vector, and what a network does: with Node's test runner, against what npm would publish."""
    tests = project / "test"
    tests.mkdir()
    for path in (ROOT / "typescript" / "test").glob("*.test.mjs"):
        (tests / path.name).write_text(path.read_text())
    vectors = ROOT / "contract" / "vectors.json"
    told = run(
        "node", "--test", "--test-reporter=tap", "test/", cwd=project, env={"VECTORS": str(vectors)}
    )
    count = re.search(r"^# pass (\d+)$", told, re.MULTILINE)
    assert count is not None
    assert int(count[1]) > len(json.loads(vectors.read_text())["vectors"])
    assert "# fail 0\n" in told


def test_the_package_holds_what_is_built_and_no_sources(project: Path) -> None:
    """Modules, their types, the README; no tests and no TypeScript to compile."""
    package = project / "node_modules" / "sqsdelay"
    found = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    modules = [path.stem for path in (ROOT / "typescript" / "src").glob("*.ts")]
    built = {f"dist/{name}{kind}" for name in modules for kind in (".js", ".d.ts")}
    assert found == built | {"package.json", "README.md"}


def test_the_readmes_code_passes_the_types(project: Path) -> None:
    """As in a user's own project, which is strict."""
    text = (ROOT / "typescript" / "README.md").read_text()
    (code,) = re.findall(r"```ts\n(.*?)```", text, re.DOTALL)
    wrong = '// @ts-expect-error: no such option\nawait sender.send("orders", "x", { delaySeconds: 1 });\n'
    (project / "readme.mts").write_text(code + wrong)
    options = (
        "--strict",
        "--noEmit",
        "--skipLibCheck",
        "--module",
        "nodenext",
        "--target",
        "es2022",
    )
    run(
        str(ROOT / "node_modules" / ".bin" / "tsc"),
        *options,
        "--types",
        "node",
        "readme.mts",
        cwd=project,
    )


def test_what_node_sends_hops_and_arrives_on_time(relayed: Site, project: Path) -> None:
    """A delay, a due time and a batch through the delay queue; body, attributes and id arrive."""
    site = relayed
    due = datetime.now(UTC) + timedelta(seconds=6)
    (project / "send.mjs").write_text(
        f"""
        import {{ DelaySender }} from "sqsdelay";
        const sender = new DelaySender(undefined, {{ hopSeconds: {HOP} }});
        const dueAt = new Date("{due.isoformat()}");
        const attributes = {{ tenant: "acme", n: 7, bytes: new Uint8Array([0, 255]) }};
        const one = await sender.send("{site.name}", "delay", {{ delay: 3.5, attributes }});
        const many = await sender.sendMany("{site.name}", [
          {{ body: "due", dueAt, messageId: "order-7" }},
          {{ body: "", delay: 3 }},
          {{ body: "direct", delay: 1 }},
        ]);
        console.log(JSON.stringify([one, ...many]));
        """
    )
    told = run("node", "send.mjs", cwd=project, env=site.aws.environment())
    results = json.loads(told)
    assert [r.get("route") for r in results] == ["delay-queue", "delay-queue", None, "direct"]
    arrived = site.arrived(3)
    delayed, dated = arrived["delay"], arrived["due"]
    for message, result in ((delayed, results[0]), (dated, results[1])):
        assert message["at"] >= datetime.fromisoformat(result["due"])
        assert attribute(message, MESSAGE_ID) == result["messageId"]
    assert dated["at"] >= due
    assert attribute(dated, MESSAGE_ID) == "order-7"
    assert due_ms_of_id(results[0]["messageId"]) == _ms(results[0]["due"])
    assert attribute(delayed, "tenant") == "acme"
    assert delayed["MessageAttributes"]["n"] == {"StringValue": "7", "DataType": "Number"}
    assert delayed["MessageAttributes"]["bytes"]["BinaryValue"] == b"\x00\xff"


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def block(language: str, part: str) -> Block:
    (found,) = (b for b in blocks(PAGE) if b.language == language and part in b.text)
    return found


@pytest.fixture
def orders(local_aws: LocalAws) -> Iterator[Site]:
    """The page's endpoint; its hop is short, so that what waits can be looked at."""
    site = Site(local_aws, "orders")
    yield site
    for url in site.sqs.list_queues(QueueNamePrefix="orders").get("QueueUrls", []):
        site.sqs.delete_queue(QueueUrl=url)


def test_the_pages_javascript_runs(orders: Site, project: Path) -> None:
    """With the package, and with the SDK alone: relayed ones wait in the delay queue, others do not."""
    package, bare = block("js", "DelaySender"), block("js", "GetQueueUrlCommand")
    (project / "bare.mjs").write_text(bare.text)
    (project / "page.mjs").write_text(
        package.text
        + "if (results.some((result) => result.error)) throw results;\n"
        + 'const { sendDelayed } = await import("./bare.mjs");\n'
        + 'await sendDelayed("bare", 86400, "bare-1");\nawait sendDelayed("now", 0);\n'
    )
    run("node", "page.mjs", cwd=project, env=orders.aws.environment())
    url = orders.sqs.get_queue_url(QueueName=f"orders{DELAY_QUEUE_SUFFIX}")["QueueUrl"]
    waiting: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(waiting) < 5:
        assert time.monotonic() < deadline, waiting
        waiting |= {message["Body"]: message for message in orders._receive(url)}
    assert attribute(waiting["bare"], DELAY_SECONDS) == "86400"
    assert attribute(waiting["bare"], MESSAGE_ID) == "bare-1"
    assert waiting["bare"]["Attributes"]["MessageGroupId"] == "bare-1"
    assert set(orders.arrived(1)) == {"now"}


def test_the_pages_request_of_the_aws_cli_is_accepted_and_read(orders: Site) -> None:
    """Its options are SendMessage's fields; boto3 sends them, and the delay consumer reads the copy."""
    words = shlex.split(block("console", "aws sqs send-message").text.replace("\\\n", " "))
    assert words[:3] == ["aws", "sqs", "send-message"]
    names = [word.removeprefix("--").title().replace("-", "") for word in words[3::2]]
    given: dict[str, Any] = dict(zip(names, words[4::2], strict=True))
    queue = re.search(r"--queue-name (\S+)", given["QueueUrl"])
    assert queue is not None
    given["QueueUrl"] = orders.sqs.get_queue_url(QueueName=queue[1])["QueueUrl"]
    given["MessageAttributes"] = json.loads(given["MessageAttributes"])
    orders.sqs.send_message(**given)
    message = orders.waiting()
    assert attribute(message, DELAY_SECONDS) == str(30 * 86_400)
    assert attribute(message, MESSAGE_ID) == message["Attributes"]["MessageGroupId"] == "order-7"


@pytest.mark.parametrize("language", ["php", "ruby", "java", "go", "csharp"])
def test_a_snippet_that_is_not_run_names_what_is_on_the_wire(language: str) -> None:
    """A renamed attribute or queue, or another limit, would be found here."""
    code = block(language, "").text
    for word in (
        DELAY_SECONDS,
        MESSAGE_ID,
        f"orders{DELAY_QUEUE_SUFFIX}",
        f"> {MAX_MESSAGE_TIMER_SECONDS}",
    ):
        assert word in code, word
