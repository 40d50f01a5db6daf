"""What `import sqsdelay` gives, what a type checker sees of it, and what it does not do."""

from __future__ import annotations

import re
import sys
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import boto3
import pytest
from mypy_boto3_sqs import SQSClient
from mypy_boto3_sqs.service_resource import Queue, SQSServiceResource
from mypy_boto3_sqs.type_defs import SendMessageResultTypeDef

import sqsdelay
import sqsdelay.rabbitmq as adapter
from sqsdelay import unrestricted
from tests.approved import payloads, public_face
from tests.approved.public_face import DOORS, offered
from tests.patience import ended


def test_all_public_names_exist() -> None:
    """`__all__` and the lazy attributes agree."""
    assert {name: getattr(sqsdelay, name).__name__ for name in sqsdelay.__all__} == {
        name: name for name in sqsdelay.__all__
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match=r"^module 'sqsdelay' has no attribute 'Nope'$"):
        _ = sqsdelay.Nope


def test_importing_does_nothing() -> None:
    """No client, no environment, no boto3 until it is used."""
    program = (
        "import sys, os\n"
        "os.environ.clear()\n"
        "import sqsdelay, sqsdelay.core.message, sqsdelay.sending.sender, sqsdelay.relaying.relay\n"
        "print([m for m in ('boto3', 'botocore', 'typer', 'tenacity') if m in sys.modules])\n"
    )
    done = ended([sys.executable, "-c", program], check=True)
    assert done.stdout.strip() == "[]"


VENDORS = {"boto3", "botocore", "pika", "psycopg", "kombu", "pyspark", "pyarrow", "typer", "pytest"}
VENDORS |= {"sqlite3"}  # a Python may have been built without
NEEDED = {
    "sqsdelay.celery": {"boto3", "botocore", "kombu"},
    "sqsdelay.ledger.firehose": {"boto3", "botocore"},
    "sqsdelay.rabbitmq": {"pika"},
    "sqsdelay.s3": {"boto3", "botocore"},
    "sqsdelay.sqs": {"boto3", "botocore"},
}
"""What stands behind a door at once; everything else is imported by the first name that needs it."""


@pytest.mark.parametrize("door", DOORS)
def test_a_door_imports_no_vendor_but_its_own(door: str) -> None:
    """A receiver's or a RabbitMQ user's process does not pay for boto3, nor anyone's for Spark."""
    program = f"import sys, {door}; print(*sorted({VENDORS} & set(sys.modules)))"
    done = ended([sys.executable, "-c", program], check=True)
    assert set(done.stdout.split()) <= NEEDED.get(door, set())


def test_every_public_name_is_there() -> None:
    """`__all__` and what each name leads to agree."""
    named = {name: getattr(adapter, name) for name in adapter.__all__}
    assert named.pop("MAX_DELAY_SECONDS") == 268_435_455
    assert {name: value.__name__ for name, value in named.items()} == {n: n for n in named}


URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"


def test_a_client_stays_a_client() -> None:
    """Its methods keep their argument and answer types."""
    sqs = unrestricted(boto3.client("sqs"))
    assert_type(sqs, SQSClient)
    assert sqs.meta.service_model.service_name == "sqs"
    if TYPE_CHECKING:
        answer = sqs.send_message(QueueUrl=URL, MessageBody="x", DelaySeconds=31_536_000)
        assert_type(answer, SendMessageResultTypeDef)
        sqs.send_message(QueueUrl=URL, MessageBody=1)  # type: ignore[arg-type]


def test_a_resource_stays_a_resource() -> None:
    """The service and its queues alike."""
    service = unrestricted(boto3.resource("sqs"))
    assert_type(service, SQSServiceResource)
    queue = unrestricted(service.Queue(URL))
    assert_type(queue, Queue)
    assert queue.url == URL
    if TYPE_CHECKING:
        unrestricted(boto3.client("s3"))  # type: ignore[type-var]
        unrestricted("sqs")  # type: ignore[type-var]


ROOT = Path(__file__).parents[2]

REMEDY = "if this is meant: .venv/bin/python -m tests.approved, and commit what it writes"


def change(path: Path, text: str) -> str:
    """The difference between an approved file and what the code says."""
    approved = path.read_text().splitlines() if path.exists() else []
    return "\n".join(unified_diff(approved, text.splitlines(), path.name, "the code", lineterm=""))


def test_the_public_face_is_the_approved_one() -> None:
    """A name, a parameter, a default or a field that changes is a diff for a reviewer."""
    changed = change(public_face.FILE, public_face.public_face())
    assert not changed, f"{changed}\n{REMEDY}"


def test_the_payloads_are_the_approved_ones() -> None:
    """What waits in queues and stores while a version is deployed is read by the next one."""
    made = payloads.payloads()
    assert sorted(made) == sorted(payloads.FOLDER.iterdir())
    for path, text in made.items():
        changed = change(path, text)
        assert not changed, f"{changed}\n{REMEDY}"


def test_a_change_is_noticed(tmp_path: Path) -> None:
    """The tests above can fail."""
    (tmp_path / "face.txt").write_text("class Message\n")
    assert "+class Letter" in change(tmp_path / "face.txt", "class Letter\n")


def test_a_name_is_one_thing() -> None:
    """What two doors offer under one name is the same object."""
    homes: dict[str, dict[int, str]] = {}
    for door, found in offered().items():
        for name, value in found.items():
            homes.setdefault(name, {})[id(value)] = door
    twice = {name: sorted(doors.values()) for name, doors in homes.items() if len(doors) > 1}
    assert twice == {}


PATH = re.compile(r"(?<![\w.-])(?<!-m )sqsdelay(?!\.zip)(?:\.\w+)+")


def deeper(text: str) -> list[str]:
    """Paths of the package in a text that are no door, nor a name or member of one."""
    found = {**offered(), public_face.DOOR: public_face.construct_names()}
    wrong = []
    for path in PATH.findall(text):
        parts = path.split(".")
        doors = [d for n in range(1, len(parts) + 1) if (d := ".".join(parts[:n])) in found]
        rest = parts[doors[-1].count(".") + 1 :]
        if rest and rest[0] not in found[doors[-1]] and rest[0] not in WORDS:
            wrong.append(path)
    return wrong


WORDS = {"versions"} | {
    word
    for path in (ROOT / "sqsdelay").rglob("*.py")
    for word in re.findall(r"\"(?:sqsdelay\.|\{OUR_PREFIX\})(\w+)\"", path.read_text())
}
"""Words after ``sqsdelay.`` that are no code: message attributes, exchanges, a table of versions."""

PAGES = [
    ROOT / "README.md",
    ROOT / "docs/custom_broker.py",
    ROOT / "docs/custom_store.py",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_doors_only(page: Path) -> None:
    """The rest may change; `python -m` names a command."""
    assert deeper(page.read_text()) == []


def test_a_deeper_path_is_noticed() -> None:
    """The test above can fail."""
    assert deeper("from sqsdelay.core.delay import decide") == ["sqsdelay.core.delay"]
    assert deeper("`sqsdelay.stores.SqliteStore`, sqsdelay.sqs") == []
