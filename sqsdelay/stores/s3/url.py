"""A store's place and settings in its URL: ``s3://bucket/prefix?lookup=on``."""

from __future__ import annotations

import re
from typing import Final, TypedDict
from urllib.parse import SplitResult, parse_qsl, unquote

from sqsdelay.errors import InvalidSetting

BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
"""Source: Amazon S3 User Guide, "General purpose bucket naming rules"."""


class Settings(TypedDict, total=False):
    """The arguments of `S3Store` that a URL can give."""

    prefix: str
    lookup: bool
    slots: tuple[int, ...]


def settings_of(parts: SplitResult) -> Settings:
    """The settings of a URL.

    Raises:
        ConfigurationError: one that is not known.
    """
    settings: Settings = {"prefix": unquote(parts.path.strip("/"))}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "lookup" and value in ("on", "off"):
            settings["lookup"] = value == "on"
        elif name == "slots" and re.fullmatch(r"\d{1,9}(:\d{1,9})*", value, re.ASCII):
            settings["slots"] = tuple(int(seconds) for seconds in value.split(":"))
        else:
            # Not shown: it may be a password that got into the wrong URL.
            raise InvalidSetting(
                "the settings behind ? in the store's URL are not understood; an S3 store takes "
                "lookup=on or off, slots=SECONDS:SECONDS:…"
            )
    return settings
