"""dynalite (npm), an independent DynamoDB that says what each call consumes, and a count of that."""

from __future__ import annotations

import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config

from sqsdelay.stores import table_definition

ROOT: Final = Path(__file__).parents[2]
DYNALITE: Final = ROOT / "node_modules" / "dynalite" / "cli.js"
TABLE: Final = "orders.parked"
START_SECONDS: Final = 30

MESSAGE_WRITES: Final = "dynamodb write units"
OTHER_WRITES: Final = "dynamodb lease writes"
READS: Final = "dynamodb read units"
AMENDMENTS: Final = "dynamodb amendments"

_WRITES: Final = {"PutItem", "DeleteItem"}


@contextmanager
def running_dynalite() -> Iterator[str]:
    """Its URL; needs ``npm ci``.

    Raises:
        FileNotFoundError: it is not installed.
    """
    if not DYNALITE.exists():
        raise FileNotFoundError("dynalite is not installed; run npm ci")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["node", str(DYNALITE), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--createTableMs", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _await_answer(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _await_answer(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.perf_counter() + START_SECONDS
    while process.poll() is None and time.perf_counter() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("dynalite did not answer")


class Meter:
    """What the calls of a client consumed, as the server says."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.conditions_failed = 0

    def client(self, url: str) -> Any:
        """A metered client."""
        make: Any = boto3.client
        client = make(
            "dynamodb",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(max_pool_connections=16),
        )
        events = client.meta.events
        for name in (*_WRITES, "Query", "BatchGetItem"):
            events.register(f"provide-client-params.dynamodb.{name}", self._ask)
            events.register(f"after-call.dynamodb.{name}", self._count)
        return client

    def _ask(self, params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any]:
        # dynalite reckons nothing for an empty answer; AWS, the least there is.
        context["least"] = 1.0 if params.get("ConsistentRead") else 0.5
        asked = str(params.get("RequestItems"))
        context["amendments"], context["version"] = "/mark" in asked, "'format'" in asked
        return params | {"ReturnConsumedCapacity": "TOTAL"}

    def _count(self, model: Any, parsed: dict[str, Any], context: Any, **_: Any) -> None:
        if "ConsumedCapacity" not in parsed:
            self.conditions_failed += "Conditional" in str(parsed.get("Error"))
            return
        consumed = parsed["ConsumedCapacity"]
        listed = consumed if isinstance(consumed, list) else [consumed]
        units = sum(each["CapacityUnits"] for each in listed)
        if model.name == "Query":
            units = max(units, context["least"])
        if context.get("amendments") and context["version"]:
            # A process reads the table's version with its first amendments.
            units -= 1
            self.counts[READS] += 1
        self.counts[self._kind(model.name, context)] += units

    def _kind(self, operation: str, context: Any) -> str:
        if operation in _WRITES:
            return MESSAGE_WRITES if context.get("message") else OTHER_WRITES
        return AMENDMENTS if context.get("amendments") else READS

    def tell_messages(self, client: Any) -> None:
        """Have writes of messages counted apart from those of leases."""

        def tell(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
            context["message"] = bool({"b", "z"} & set(params["Item"]))

        client.meta.events.register("provide-client-params.dynamodb.PutItem", tell)


def create_table(client: Any) -> None:
    """An empty table; dynalite knows no time to live, which is free."""
    if TABLE in client.list_tables()["TableNames"]:
        client.delete_table(TableName=TABLE)
        client.get_waiter("table_not_exists").wait(TableName=TABLE, WaiterConfig={"Delay": 1})
    client.create_table(TableName=TABLE, **table_definition())
    client.get_waiter("table_exists").wait(TableName=TABLE, WaiterConfig={"Delay": 1})
