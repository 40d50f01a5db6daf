"""The table itself: its definition, and the calls on it, many at a time, with errors translated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import tenacity

from sqsdelay.core.delay import Clock
from sqsdelay.errors import StoreError, StoreMissing, StoreUnavailable
from sqsdelay.stores.calls import Calls, ServiceClock
from sqsdelay.stores.dynamodb import layout
from sqsdelay.stores.dynamodb.layout import HOUR_MS, PARTITION, SORT, Entry, Item, Layout, Place

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

CONNECT_SECONDS: Final = 2
ANSWER_SECONDS: Final = 3
"""Longest that one of three attempts waits for DynamoDB, which answers within tens of milliseconds. A
table that does not answer must fail well within a function's 30 s, so that messages go on."""

_MOST_READ_AT_ONCE: Final = 100
"""Keys of one BatchGetItem. Source: BatchGetItem API reference."""

_CONFLICT_ATTEMPTS: Final = 5
"""Attempts on a transaction that met another write on one of its items."""

LOOKED_AT_MS: Final = 10_000
"""How long it is taken for granted that the table is the one that was written to. One that was deleted and
made anew knows of no shards, no hours and no amendments: it has to be told again."""

THERE: Final = f"attribute_exists({PARTITION})"
NOT_THERE: Final = f"attribute_not_exists({PARTITION})"
"""Conditions of writes."""

_MOST_PAGE: Final = 1000
_MOST_OPERANDS: Final = 100
"""Of IN; more destinations are left out here. Source: guide, "Comparison operator and function reference"."""
_MOST_BYTES: Final = 4 * 2**20
"""Bodies that one lane of a shard adds to a batch: eight shards stay below 64 MiB."""


class ConditionFailed(StoreError):
    """The item is not as the write demands; DynamoDB said so at ``read_ms``, epoch milliseconds."""

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


class Range(NamedTuple):
    """What is looked for in a shard: messages due by then; of near ones those that are not held until
    later than now, nor go to these destinations."""

    due_by_ms: int
    now_ms: int
    except_destinations: frozenset[str]


class Table(Calls, Layout):
    """An endpoint's part of a table: where its items lie, the calls on them, DynamoDB's time; and reading
    the two lanes of messages: what is due first, what a lease covers, what an hour holds. ``clock``: tests
    only: instead of the dates of DynamoDB's answers."""

    def __init__(
        self, name: str, endpoint: str, client: DynamoDBClient | None, clock: Clock | None
    ) -> None:
        Calls.__init__(
            self, "dynamodb", client, connect_seconds=CONNECT_SECONDS, answer_seconds=ANSWER_SECONDS
        )
        Layout.__init__(self, endpoint)
        self.name = name
        self.remembered: dict[object, int] = {}
        """What is known of the table, and since when, until it is found to be gone or made anew."""
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
            expiring = {"Enabled": True, "AttributeName": layout.EXPIRY}
            self.call(self.client.update_time_to_live, TimeToLiveSpecification=expiring)

    def check(self) -> None:
        """Refuse what is no message store. Raises StoreMissing: another kind of table, or none;
        StoreUnavailable."""
        described = self.call(self.client.describe_table)["Table"]
        keys = [schema["AttributeName"] for schema in described["KeySchema"]]
        if keys != [PARTITION, SORT]:
            raise StoreMissing(
                f"table {self.name} has the keys {', '.join(keys)}, not {PARTITION} and {SORT}; it "
                "is not a message store"
            )

    def remember(self, what: object) -> None:
        self.remembered[what] = self.clock.now_ms()

    def is_recent(self, what: object) -> bool:
        """Whether it was seen so lately that it is taken for granted."""
        seen_ms = self.remembered.get(what)
        return seen_ms is not None and 0 <= self.clock.now_ms() - seen_ms < LOOKED_AT_MS

    def put(self, item: Item, condition: str = "", **values: Item) -> tuple[bool, int]:
        """Write an item; whether its condition held, and when DynamoDB said so. ``values``: of the
        condition, where they stand with a colon before their names."""
        given: dict[str, Any] = {"ConditionExpression": condition} if condition else {}
        if values:
            given["ExpressionAttributeValues"] = {f":{name}": at for name, at in values.items()}
        try:
            answer = self.call(self.client.put_item, Item=item, **given)
        except ConditionFailed as there:
            return False, there.read_ms
        return True, self.clock.read(answer)

    def delete(self, key: layout.Key) -> bool:
        """Delete an item; whether it was there."""
        with suppress(ConditionFailed):
            self.call(self.client.delete_item, Key=key, ConditionExpression=THERE)
            return True
        return False

    def get(self, keys: Sequence[layout.Key]) -> list[Item]:
        """Those of the items that are there, in no order."""
        chunks = [keys[n : n + _MOST_READ_AT_ONCE] for n in range(0, len(keys), _MOST_READ_AT_ONCE)]
        return [item for chunk in self.each(self._get, chunks) for item in chunk]

    def _get(self, keys: Sequence[layout.Key]) -> list[Item]:
        request: Any = {self.name: {"Keys": list(keys), "ConsistentRead": True}}
        items: list[Item] = []
        while request:
            answer = self._answer(self.client.batch_get_item, RequestItems=request)
            items += answer["Responses"].get(self.name, [])
            request = answer.get("UnprocessedKeys")
        return items

    def pages(
        self, partition: str, condition: str = "", *bounds: str, **more: Any
    ) -> Iterator[Item]:
        """A partition's items in order, page by page, as DynamoDB answers. ``condition``: on the sort key, in
        DynamoDB's terms, e.g. ``> :0``. ``bounds``: the values ``:0`` and ``:1`` of the condition. ``more``:
        further arguments of Query; its values are added to those of the condition."""
        values: Item = {":p": {"S": partition}, **more.get("ExpressionAttributeValues", {})}
        values |= {f":{n}": {"S": bound} for n, bound in enumerate(bounds)}
        keys = f"{PARTITION} = :p" + (f" AND {SORT} {condition}" if condition else "")
        query = {**more, "KeyConditionExpression": keys, "ExpressionAttributeValues": values}
        while True:
            page = self.call(self.client.query, **query)
            yield page
            if "LastEvaluatedKey" not in page:
                return
            query["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(_Conflict),
        stop=tenacity.stop_after_attempt(_CONFLICT_ATTEMPTS),
        reraise=True,
    )
    def transact(self, *actions: dict[str, Any]) -> int:
        """Write all or nothing; when DynamoDB confirmed it. Raises ConditionFailed."""
        named = [
            {kind: {"TableName": self.name, **arguments} for kind, arguments in action.items()}
            for action in actions
        ]
        return self.clock.read(self._answer(self.client.transact_write_items, TransactItems=named))

    def call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        """Make a call on this table. Raises ConditionFailed, StoreMissing, StoreUnavailable, StoreError."""
        return self._answer(call, TableName=self.name, **arguments)

    def _answer(self, call: Callable[..., Any], **arguments: Any) -> Any:
        answer = self.answered(call, **arguments)
        self.clock.read(answer)
        return answer

    def _refused(self, error: Exception, response: Any) -> StoreError:
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
            self.remembered.clear()
            return StoreMissing(
                f"DynamoDB table {self.name} does not exist at {self.client.meta.endpoint_url}; run "
                "sqsdelay store create or set_up(), or deploy it"
            )
        if "ValidationException" in codes:
            return StoreError(f"DynamoDB store {self.name}: {error}")
        return StoreUnavailable(f"DynamoDB store {self.name} cannot be used now: {error}")

    def peek(self, shard: int, cursor: str, wanted: Range, limit: int) -> list[Place]:
        """Places of a shard's first messages that are due, in no order; may be behind."""
        page = min(limit, _MOST_PAGE)
        keys = f"{PARTITION}, {SORT}, {layout.DESTINATION}"
        keys_only = {"ProjectionExpression": keys, "Limit": page}
        far = self._far(shard, cursor, wanted.due_by_ms, **keys_only)
        near = self._near(shard, "", wanted, **keys_only)
        return [layout.place_of(item) for lane in (far, near) for item in islice(lane, limit)]

    def taken(
        self, shard: int, cursor: str, far_to: str, near_to: str, wanted: Range
    ) -> tuple[list[Entry], str]:
        """The messages of a shard from the cursor to where each lane is taken, in order, as they are now; and
        the position up to which all far ones are among them: not its end where they would take too much
        memory."""
        now: dict[str, Any] = {"ConsistentRead": True}
        far, near, last_far = list[Entry](), list[Entry](), far_to
        if far_to:
            found = self._far(shard, cursor, layout.due_ms_of(far_to), **now)
            covered = (item for item in found if cursor < layout.place_of(item).position <= far_to)
            far, all_of_it = self._within_memory(covered)
            last_far = last_far if all_of_it else far[-1].place.position
        if near_to:
            near, _ = self._within_memory(self._near(shard, near_to, wanted, **now))
        return far + near, last_far

    def _within_memory(self, items: Iterator[Item]) -> tuple[list[Entry], bool]:
        entries: list[Entry] = []
        held = 0
        for item in items:
            if held > _MOST_BYTES:
                return entries, False
            entries.append(self.entry(item))
            held += len(entries[-1].message.body)
        return entries, True

    def _far(self, shard: int, after: str, due_by_ms: int, **more: Any) -> Iterator[Item]:
        """Far items behind a position that are due by then, hour by hour."""
        after_ms = layout.due_ms_of(after)
        first, last = after_ms // HOUR_MS, due_by_ms // HOUR_MS
        for hour in range(first, last + 1):
            # The least text behind an id: a far item's own key is left out, and nothing between.
            behind = f"{after[15:]}\x00" if after[15:] else ""
            start = layout.far_sort(after_ms % HOUR_MS, behind) if hour == first else "0"
            end = layout.far_sort(due_by_ms % HOUR_MS + 1) if hour == last else "9"
            partition = self.far(hour, shard)
            if start <= end:
                yield from self._items(partition, "BETWEEN :0 AND :1", start, end, **more)

    def _near(self, shard: int, to: str, wanted: Range, **more: Any) -> Iterator[Item]:
        """Near items up to a position that are due and not held."""
        # True without that attribute, and where somebody wrote by hand what is no number.
        condition = f"(NOT {layout.HELD_UNTIL} > :now)"
        if self.endpoint in wanted.except_destinations:
            condition += f" AND attribute_exists({layout.DESTINATION})"
        left_out = sorted(wanted.except_destinations - {self.endpoint})[:_MOST_OPERANDS]
        values = {f":d{n}": {"S": destination} for n, destination in enumerate(left_out)}
        if left_out:
            condition += f" AND NOT {layout.DESTINATION} IN ({', '.join(values)})"
        values[":now"] = layout.number(wanted.now_ms)
        filtered = {"FilterExpression": condition, "ExpressionAttributeValues": values, **more}
        last = layout.position(wanted.due_by_ms + 1)
        end = min(to or last, last)
        for item in self._items(self.near(shard), "<= :0", end, **filtered):
            if self.destination(item) not in wanted.except_destinations:
                yield item

    def _items(self, partition: str, condition: str, *bounds: str, **more: Any) -> Iterator[Item]:
        for page in self.pages(partition, condition, *bounds, **more):
            yield from page["Items"]

    def entries(
        self, shard: int, hour: int | None, after: str, *, limit: int | None = None
    ) -> Iterator[Entry]:
        """Messages behind a position: of an hour, or near ones where ``hour`` is None."""
        more: dict[str, Any] = {} if limit is None else {"Limit": limit}
        for page in self._behind(shard, hour, after, **more):
            yield from map(self.entry, page["Items"])

    def count_behind(self, shard: int, hour: int | None, after: str = "") -> int:
        """How many messages lie behind a position: of an hour, or near ones."""
        return sum(page["Count"] for page in self._behind(shard, hour, after, Select="COUNT"))

    def _behind(self, shard: int, hour: int | None, after: str, **more: Any) -> Iterator[Item]:
        if hour is None:
            return self.pages(self.near(shard), "> :0", after or "0", **more)
        in_hour, within_ms = divmod(layout.due_ms_of(after) if after else -1, HOUR_MS)
        if in_hour > hour:
            return iter(())
        start = layout.far_sort(within_ms, after[15:]) if in_hour == hour else "0"
        return self.pages(self.far(hour, shard), "> :0", start, **more)

    def hours_from(self, first: int) -> Iterator[int]:
        """Hours that messages are due in, from one on."""
        for item in self._items(self.hours, ">= :0", self.hour(first)[SORT]["S"]):
            yield int(item[SORT]["S"])

    def about(self, place: Place, to_ms: int) -> list[Item]:
        """The items of a message that is due from a place's time on, which may span two hours."""
        now: dict[str, Any] = {"ConsistentRead": True}
        if place.lane is layout.Lane.NEAR:
            bounds = layout.position(place.due_ms), layout.position(to_ms + 1)
            found = self._items(self.near(place.shard), "BETWEEN :0 AND :1", *bounds, **now)
        else:
            found = self._far(place.shard, layout.position(place.due_ms), to_ms, **now)
        return [item for item in found if layout.place_of(item).message_id == place.message_id]
