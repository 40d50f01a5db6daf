"""botocore and moto without what they work out anew for each client and each call; their answers stay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any

from botocore import client, regions, useragent
from botocore.hooks import EventAliaser
from botocore.loaders import Loader

_kept: defaultdict[type, dict[Any, Any]] = defaultdict(dict)


def quicken_botocore() -> None:
    """Each client reads its service's models and rules: 60 ms. Each request tells who makes it."""
    of_all: Any = property(lambda self: _kept[type(self)], lambda *_: None)
    setattr(Loader, "_cache", of_all)  # noqa: B010 - not in its types
    setattr(EventAliaser, "_alias_name_cache", of_all)  # noqa: B010
    for module, name, once in (
        (client, "ServiceModel", _once),
        (regions, "EndpointProvider", _once),
        (useragent, "sanitize_user_agent_string_component", cache),
    ):
        setattr(module, name, once(getattr(module, name)))


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """What is made of the same data is the same."""
    made: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def again(*given: Any, **named: Any) -> Any:
        parts = (*given, *named.values())
        key = tuple(each if isinstance(each, str) else id(each) for each in parts)
        if key not in made:
            made[key] = make(*given, **named), parts  # kept, or another's could have its id
        return made[key][0]

    return again


def quicken_moto() -> None:
    """Each mock prepares 2,000 answers for a library that no test uses, and makes boto3's session anew:
    30 ms. Each call looks for its method's name in all of the class, each query sorts the whole table."""
    from moto.core import responses
    from moto.core.config import default_user_config
    from moto.core.models import RESPONSES_METHODS
    from moto.dynamodb.models.table import Table

    RESPONSES_METHODS.clear()
    default_user_config["core"]["reset_boto3_session"] = False
    for name in ("camelcase_to_underscores", "method_names_from_class"):
        setattr(responses, name, cache(getattr(responses, name)))
    Table.all_items = _by_text  # type: ignore[method-assign,assignment]


def _by_text(table: Any) -> list[Any]:
    """The items of a table whose two keys are text, as sqsdelay's are."""
    # Copied at one go: another thread may be writing.
    items = [
        item for of_one_key in list(table.items.values()) for item in list(of_one_key.values())
    ]
    return sorted(items, key=lambda item: (item.hash_key.value, item.range_key.value))
