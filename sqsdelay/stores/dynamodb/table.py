"""The table itself: its definition, and the calls on it, many at a time, with errors translated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sqsdelay.core.clock import Clock
from sqsdelay.errors import StoreError, StoreMissing, StoreUnavailable
from sqsdelay.stores.calls import Calls
from sqsdelay.stores.clocks import ServiceClock
from sqsdelay.stores.dynamodb.layout import EXPIRY, PARTITION, SORT, Item, Key, Layout

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_CONNECT_SECONDS: Final = 2
_ANSWER_SECONDS: Final = 3
"""Longest that one of three attempts waits for DynamoDB, which answers within tens of milliseconds. A
table that does not answer must fail well within a function's 30 s, so that messages go on."""

_MOST_READ_AT_ONCE: Final = 100
"""Keys of one BatchGetItem. Source: BatchGetItem API reference."""

_CONFLICT_ATTEMPTS: Final = 5
"""Attempts on a transaction that met another write on one of its items."""

LOOKED_AT_MS: Final = 10_000
"""How long it is taken for granted that the table is the one that was written to. One that was deleted and
made anew knows of no shards, no hours and no amendments: it has to be told again."""

Seen = tuple[int, int]
"""When something was seen in a table, and in which of the tables of its name."""

THERE: Final = f"attribute_exists({PARTITION})"
NOT_THERE: Final = f"attribute_not_exists({PARTITION})"
"""Conditions of writes."""


class ConditionFailed(StoreError):
    """The item is not as the write demands.

    Args:
        read_ms: when DynamoDB said so, epoch milliseconds.
    """

    def __init__(self, text: str, *, read_ms: int) -> None:
        super().__init__(text)
        self.read_ms = read_ms


class _Conflict(StoreUnavailable):
    """Another write on the same item was under way; the same call again may pass."""


def table_definition() -> dict[str, Any]:
    """Keys and billing of the table, under CreateTable's names."""
    return {
        "KeySchema": [
            {"AttributeName": PARTITION, "KeyType": "HASH"},
            {"AttributeName": SORT, "KeyType": "RANGE"},
        ],
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for name in (PARTITION, SORT)
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }


class Table(Calls, Layout):
    """An endpoint's part of a table: where its items lie, the calls on them, DynamoDB's time.

    Args:
        clock: tests only: instead of the dates of DynamoDB's answers.
    """

    def __init__(
        self, name: str, endpoint: str, client: DynamoDBClient | None, clock: Clock | None
    ) -> None:
        Calls.__init__(
            self,
            "dynamodb",
            client,
            connect_seconds=_CONNECT_SECONDS,
            answer_seconds=_ANSWER_SECONDS,
        )
        Layout.__init__(self, endpoint)
        self.name = name
        self.made_anew = 0
        """How often the table was found to be gone, or another one of its name: what is remembered of it
        counts until then."""
        self.clock = ServiceClock(clock)

    def set_up(self, table_class: str) -> None:
        """Create the table unless it exists, and let it forget what has expired."""
        with suppress(_Conflict):
            self.call(self.client.create_table, TableClass=table_class, **table_definition())
        exists = self.client.get_waiter("table_exists")
        self.answered(exists.wait, TableName=self.name, WaiterConfig={"Delay": 2})
        self.check()
        state = self.call(self.client.describe_time_to_live)["TimeToLiveDescription"]
        if state.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            expiring = {"Enabled": True, "AttributeName": EXPIRY}
            self.call(self.client.update_time_to_live, TimeToLiveSpecification=expiring)

    def check(self) -> None:
        """Refuse what is no message store.

        Raises:
            StoreMissing: another kind of table, or none.
            StoreUnavailable
        """
        described = self.call(self.client.describe_table)["Table"]
        keys = [schema["AttributeName"] for schema in described["KeySchema"]]
        if keys != [PARTITION, SORT]:
            raise StoreMissing(
                f"table {self.name} has the keys {', '.join(keys)}, not {PARTITION} and {SORT}; it "
                "is not a message store"
            )

    def seen(self) -> Seen:
        return self.clock.now_ms(), self.made_anew

    def is_recent(self, seen: Seen | None) -> bool:
        """Whether what was seen then is taken for granted still."""
        if seen is None or seen[1] != self.made_anew:
            return False
        return 0 <= self.clock.now_ms() - seen[0] < LOOKED_AT_MS

    def put(self, item: Item, *, only_new: bool = False) -> tuple[bool, int]:
        """Write an item; whether it was written, and when DynamoDB said so."""
        condition = {"ConditionExpression": NOT_THERE} if only_new else {}
        try:
            answer = self.call(self.client.put_item, Item=item, **condition)
        except ConditionFailed as there:
            return False, there.read_ms
        return True, self.clock.read(answer)

    def delete(self, key: Key) -> bool:
        """Delete an item; whether it was there."""
        return self.applied(self.client.delete_item, Key=key, ConditionExpression=THERE)

    def get(self, keys: Sequence[Key]) -> list[Item]:
        """Those of the items that are there, in no order."""
        chunks = [keys[n : n + _MOST_READ_AT_ONCE] for n in range(0, len(keys), _MOST_READ_AT_ONCE)]
        return [item for chunk in self.each(self._get, chunks) for item in chunk]

    def _get(self, keys: Sequence[Key]) -> list[Item]:
        request: Any = {self.name: {"Keys": list(keys), "ConsistentRead": True}}
        items: list[Item] = []
        while request:
            answer = self._answer(self.client.batch_get_item, RequestItems=request)
            items += answer["Responses"].get(self.name, [])
            request = answer.get("UnprocessedKeys")
        return items

    def pages(
        self, partition: str, sort: str = "", values: dict[str, str] | None = None, **more: Any
    ) -> Iterator[Item]:
        """A partition's items in order, page by page, as DynamoDB answers.

        Args:
            sort: a condition on the sort key in DynamoDB's terms, e.g. ``s > :after``.
            values: of the condition.
            more: further arguments of Query; its values are added to those of the condition.
        """
        given = {f":{name}": {"S": value} for name, value in (values or {}).items()}
        query = {
            **more,
            "KeyConditionExpression": f"{PARTITION} = :p" + (f" AND {sort}" if sort else ""),
            "ExpressionAttributeValues": {
                ":p": {"S": partition},
                **given,
                **more.get("ExpressionAttributeValues", {}),
            },
        }
        while True:
            page = self.call(self.client.query, **query)
            yield page
            if "LastEvaluatedKey" not in page:
                return
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def transact(self, *actions: dict[str, Any]) -> int:
        """Write all or nothing; when DynamoDB confirmed it.

        Raises:
            ConditionFailed
        """
        named = [
            {kind: {"TableName": self.name, **arguments} for kind, arguments in action.items()}
            for action in actions
        ]
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                return self.clock.read(
                    self._answer(self.client.transact_write_items, TransactItems=named)
                )
            except _Conflict:
                if attempt + 1 == _CONFLICT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def applied(self, call: Callable[..., Any], **arguments: Any) -> bool:
        """Make a conditional write; False where its condition does not hold."""
        try:
            self.call(call, **arguments)
        except ConditionFailed:
            return False
        return True

    def call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        """Make a call on this table.

        Raises:
            ConditionFailed, StoreMissing, StoreUnavailable, StoreError
        """
        return self._answer(call, TableName=self.name, **arguments)

    def _answer(self, call: Callable[..., Any], **arguments: Any) -> Any:
        answer = self.answered(call, **arguments)
        self.clock.read(answer)
        return answer

    def _refused(self, error: ClientError | BotoCoreError, response: Any) -> StoreError:
        # Of a transaction, each action has a reason of its own.
        reasons = [reason.get("Code") for reason in response.get("CancellationReasons", ())]
        codes = {response.get("Error", {}).get("Code"), *reasons}
        if codes & {"ConditionalCheckFailedException", "ConditionalCheckFailed"}:
            return ConditionFailed(str(error), read_ms=self.clock.read(response))
        if codes & {
            "TransactionConflictException",
            "TransactionConflict",
            "ResourceInUseException",
        }:
            return _Conflict(f"DynamoDB store {self.name}: {error}")
        if "ResourceNotFoundException" in codes:
            self.made_anew += 1
            return StoreMissing(
                f"DynamoDB table {self.name} does not exist; run sqsdelay store create (set_up()), "
                "or deploy it"
            )
        if "ValidationException" in codes:
            return StoreError(f"DynamoDB store {self.name}: {error}")
        return StoreUnavailable(f"DynamoDB store {self.name} cannot be used now: {error}")
