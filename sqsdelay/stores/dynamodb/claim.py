"""A claim on DynamoDB: leased items, each write conditional on the lease."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from sqsdelay.core.clock import Clock
from sqsdelay.core.stored_message import StoredMessage
from sqsdelay.errors import ConfigurationError
from sqsdelay.stores.dynamodb.table import Item, Table, number


class DynamoDbClaim:
    """Messages leased under ``token``."""

    transaction: Final = None

    def __init__(
        self, table: Table, clock: Clock, token: str, messages: list[StoredMessage]
    ) -> None:
        self.messages = messages
        self._table = table
        self._clock = clock
        self._token = {":claim": {"S": token}}
        self._open = {message.message_id for message in messages}

    def attempt(self) -> AbstractContextManager[None]:
        raise ConfigurationError("a DynamoDB store has no transaction to attempt anything in")

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        def remove(message_id: str) -> bool:
            return self._table.applied(
                self._table.client.delete_item,
                Key=self._table.key(message_id),
                ConditionExpression="claimed_by = :claim",
                ExpressionAttributeValues=self._token,
            )

        removed = self._table.each(remove, message_ids)
        self._open.difference_update(message_ids)
        return removed

    def count_failures(
        self, message_ids: Sequence[str], *, retry_after_seconds: float
    ) -> list[bool]:
        return self._settle(message_ids, retry_after_seconds, failed=1)

    def hold(self, message_ids: Sequence[str], *, seconds: float) -> list[bool]:
        return self._settle(message_ids, seconds, failed=0)

    def renew(self, lease_seconds: float) -> None:
        """Begin the lease anew for what is not settled yet."""
        self._update(list(self._open), "SET held_until_ms = :until", until=self._in(lease_seconds))

    def release(self) -> None:
        """Let go of what was neither removed nor held."""
        free = "SET held_until_ms = :until REMOVE claimed_by"
        self._update(list(self._open), free, until=number(0))

    def _settle(self, message_ids: Sequence[str], seconds: float, *, failed: int) -> list[bool]:
        settled = self._update(
            message_ids,
            "SET held_until_ms = :until, failures = failures + :failed REMOVE claimed_by",
            until=self._in(seconds),
            failed=number(failed),
        )
        self._open.difference_update(message_ids)
        return settled

    def _update(self, message_ids: Sequence[str], expression: str, **values: Item) -> list[bool]:
        arguments = self._token | {f":{name}": value for name, value in values.items()}

        def update(message_id: str) -> bool:
            return self._table.applied(
                self._table.client.update_item,
                Key=self._table.key(message_id),
                UpdateExpression=expression,
                ConditionExpression="claimed_by = :claim",
                ExpressionAttributeValues=arguments,
            )

        return self._table.each(update, message_ids)

    def _in(self, seconds: float) -> Item:
        return number(self._clock.now_ms() + round(seconds * 1000))
