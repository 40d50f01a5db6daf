"""moto without what makes most of its work, and none of its answers."""

from __future__ import annotations

from typing import Any

from moto.core.config import default_user_config
from moto.core.models import RESPONSES_METHODS
from moto.dynamodb.models.table import Table


def quicken() -> None:
    """Each mock prepares 2,000 answers for a library that no test uses, and makes boto3's session anew:
    30 ms. Each query sorts the whole table by values that are cast for each comparison."""
    RESPONSES_METHODS.clear()
    default_user_config["core"]["reset_boto3_session"] = False
    Table.all_items = _by_text  # type: ignore[method-assign,assignment]


def _by_text(table: Any) -> list[Any]:
    """The items of a table whose two keys are text, as sqsdelay's are."""
    items = [item for of_one_key in table.items.values() for item in of_one_key.values()]
    return sorted(items, key=lambda item: (item.hash_key.value, item.range_key.value))
