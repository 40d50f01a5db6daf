"""From what passes a proxy to the journal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqsdelay.core.received_message import ReceivedMessage, from_boto3
from tests.services.sqs_proxy import Exchange
from tests.simulation.journal import Asked, Journal


class ProxyJournal:
    """Writes one party's exchanges into the journal."""

    def __init__(self, journal: Journal, party: str) -> None:
        self.party = party
        self._journal = journal
        self._of_receipt: dict[str, ReceivedMessage] = {}

    def __call__(self, exchange: Exchange) -> None:
        if exchange.fault is not None:
            self._journal.inject()
        queue = str(exchange.request.get("QueueUrl", "")).rpartition("/")[2]
        if exchange.action.startswith("SendMessage"):
            self._sent(queue, exchange)
        elif exchange.action == "ReceiveMessage":
            self._received(queue, exchange)
        elif exchange.action == "DeleteMessageBatch":
            self._deleted(queue, exchange)

    def _sent(self, queue: str, exchange: Exchange) -> None:
        request, answer = exchange.request, exchange.answer or {}
        single = "Entries" not in request
        made = {sent["Id"]: sent["MessageId"] for sent in answer.get("Successful", ())}
        asked = [
            Asked(
                body=entry["MessageBody"],
                deduplication_id=entry.get("MessageDeduplicationId"),
                timer_seconds=entry.get("DelaySeconds"),
                made=answer.get("MessageId") if single else made.get(entry["Id"]),
            )
            for entry in ([request] if single else request["Entries"])
        ]
        self._journal.sent(
            self.party,
            queue,
            asked,
            at_ms=time.time_ns() // 1_000_000,
            answered=exchange.told,
            asked_ms=exchange.asked_ms,
        )

    def _received(self, queue: str, exchange: Exchange) -> None:
        if exchange.answer is None or not exchange.told:
            return
        copies = [
            from_boto3(raw, received_at=time.monotonic())
            for raw in exchange.answer.get("Messages", ())
        ]
        self._of_receipt |= {copy.receipt_handle: copy for copy in copies}
        self._journal.received(self.party, queue, copies, at_ms=time.time_ns() // 1_000_000)

    def _deleted(self, queue: str, exchange: Exchange) -> None:
        answer: Mapping[str, Any] = exchange.answer or {}
        done = {deleted["Id"] for deleted in answer.get("Successful", ())}
        asked = [
            (self._of_receipt[entry["ReceiptHandle"]], entry["Id"] in done)
            for entry in exchange.request["Entries"]
        ]
        self._journal.deleted(
            self.party,
            queue,
            [(copy.body, copy.sqs_message_id, deleted) for copy, deleted in asked],
            at_ms=time.time_ns() // 1_000_000,
            answered=exchange.told,
        )
