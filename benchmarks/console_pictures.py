"""The pictures of the console in README.md and docs/console.md, from a console on a local AWS.

    python -m benchmarks.console_pictures [FOLDER]

Needs Chromium and its driver.
"""

from __future__ import annotations

import base64
import json
import os
import random
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from sqsdelay import DelaySender, Message
from sqsdelay.console import ConsoleSettings
from sqsdelay.console.guard import Access
from sqsdelay.console.server import serving
from sqsdelay.console.services import Services
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.message import DELAY_SECONDS, DUE_AT, string
from sqsdelay.core.received_message import ReceivedMessage
from sqsdelay.core.rejection import rejected
from sqsdelay.ledger import Event, EventKind, FileLedger, Source
from sqsdelay.sqs import SqsQueues, create_endpoint
from sqsdelay.stores import open_store
from sqsdelay.testing.local_aws import LocalAws
from tests.services.chromium import chromium

FOLDER = Path("docs/images")
RELOADS = 40
NAMES = ("orders", "invoices")
SHOTS = (
    ("overview", "", "light", 1280, 860),
    ("messages", "messages", "light", 1280, 640),
    ("message", "message?endpoint=orders&id=order-10005", "dark", 1280, 620),
    ("errors", "errors", "light", 1280, 760),
    ("cost", "cost?delay=30d&messages=1000000&batch=10", "dark", 1280, 760),
    ("narrow", "", "light", 400, 860),
)


def main() -> None:
    """Start everything, and take each picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with TemporaryDirectory(prefix="sqsdelay-console-") as made, LocalAws() as aws:
        os.environ.update(aws.environment())
        url, ledger = f"sqlite:///{made}/store.db", Path(made) / "ledger.jsonl"
        fill(aws, url, FileLedger(ledger))
        settings = ConsoleSettings(endpoints=NAMES, stores=dict.fromkeys(NAMES, url), ledger=ledger)
        services = Services(settings, Access())
        services.source(NAMES[0]).errors_sample.get()
        with serving(services, port=0) as address, chromium() as browser:
            for name, path, scheme, width, height in SHOTS:
                screen(browser, scheme, width, height)
                take(browser, services, address + path, folder / f"console-{name}.png")


def screen(browser: Chrome, scheme: str, width: int, height: int) -> None:
    """Light or dark, and how large."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})


def take(browser: Chrome, services: Services, url: str, to: Path) -> None:
    """One picture, of what stands at the top of the page, once no answer is late."""
    for _ in range(RELOADS):
        for source in services.sources.values():
            source.changed()
        browser.get(url)
        time.sleep(0.5)
        if not browser.find_elements(By.CSS_SELECTOR, "#troubles p, .old"):
            break
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    to.write_bytes(base64.b64decode(taken["data"]))
    print(f"{to}  {to.stat().st_size:,} bytes")


def fill(aws: LocalAws, url: str, ledger: FileLedger) -> None:
    """Two endpoints: messages parked and on their way, some that failed, and a past."""
    chance = random.Random(4)
    queues = SqsQueues(aws.client("sqs"))
    for name in NAMES:
        create_endpoint(aws.client("sqs"), Endpoint.parse(name))
    for name, count, hours in (("orders", 400, 9), ("invoices", 60, 200)):
        with closing(open_store(url, endpoint=name)) as store:
            store.set_up()
            sender = DelaySender(aws.client("sqs"), store=store, ledger=ledger)
            far = [
                Message(
                    json.dumps({"order": n, "remind": "payment", "amount": chance.randint(5, 900)}),
                    delay=timedelta(hours=2.3 + chance.expovariate(1 / hours)),
                    message_id=f"{name[:-1]}-{10_000 + n}",
                    attributes={"tenant": "acme", "tries": 1},
                )
                for n in range(count)
            ]
            near = [Message("{}", delay=1800, message_id=f"near-{name}-{n}") for n in range(12)]
            sender.send_many(name, far + near)
    now_ms = time.time_ns() // 1_000_000
    error_queue = queues.url(Endpoint.parse("orders").error_queue)
    for n in range(9):
        dated = {DELAY_SECONDS: string("3600"), DUE_AT: string(str(now_ms + n * 600_000))}
        copy = ReceivedMessage(
            body=json.dumps({"order": n}),
            attributes=dict(dated) if n < 6 else {},
            receipt_handle="-",
            sqs_message_id=f"copy-{n}",
            received_at=0,
            sent_ms=now_ms,
            receive_count=1,
            group_id=f"order-{9000 + n}",
        )
        far_ahead = f"due in {315_000_000 + n} s; this endpoint allows delays of up to 315360000 s"
        reason = far_ahead if n < 6 else "neither a delay nor a due time is present"
        queues.send_batch(error_queue, [rejected(copy, reason)])
    past = []
    for n in range(400):
        at_ms, name = now_ms - n * 11_000, NAMES[n % 2]
        kind, source = (
            (EventKind.HANDED_OVER, Source.CONSUMER)
            if n % 3
            else (EventKind.RELEASED, Source.DISPATCHER)
        )
        past.append(
            Event(
                kind=kind,
                at_ms=at_ms,
                endpoint=name,
                message_id=f"{name[:-1]}-{9500 - n}",
                source=source,
                due_ms=at_ms - 100,
                late_ms=int(chance.expovariate(1 / 140)),
            )
        )
    ledger.record(past[::-1])


if __name__ == "__main__":
    main()
