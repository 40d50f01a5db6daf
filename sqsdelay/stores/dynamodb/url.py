"""A store's settings in its URL: ``dynamodb://table?shards=16``."""

from __future__ import annotations

from typing import TypedDict
from urllib.parse import parse_qsl

from sqsdelay.errors import InvalidSetting


class Settings(TypedDict, total=False):
    """The arguments of `DynamoDbStore` that a URL can give."""

    shards: int
    lookup: bool
    table_class: str


def settings_of(query: str) -> Settings:
    """The settings of a URL's query.

    Raises:
        ConfigurationError: one that is not known.
    """
    settings: Settings = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "shards" and value.isascii() and value.isdigit() and len(value) < 10:
            settings["shards"] = int(value)
        elif name == "lookup" and value in ("on", "off"):
            settings["lookup"] = value == "on"
        elif name == "class":
            settings["table_class"] = value
        else:
            # Not shown: it may be a password that got into the wrong URL.
            raise InvalidSetting(
                "the settings behind ? in the store's URL are not understood; a DynamoDB store takes "
                "shards=NUMBER, lookup=on or off, class=STANDARD or STANDARD_INFREQUENT_ACCESS"
            )
    return settings
