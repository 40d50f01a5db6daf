"""A function's settings in its environment."""

from __future__ import annotations

import os

from sqsdelay.core.received_message import whole_number
from sqsdelay.errors import ConfigurationError


def whole_setting(variable: str, default: int) -> int:
    """A whole number; the default where the variable is not set.

    Raises:
        ConfigurationError: any other value.
    """
    text = os.environ.get(variable, str(default))
    value = whole_number(text)
    if value is None:
        raise ConfigurationError(
            f"{variable}={text!r} is not a whole number; leave it out for {default}"
        )
    return value


def switch(variable: str) -> bool:
    """Whether the variable is ``true``; False where it is not set.

    Raises:
        ConfigurationError: any other value.
    """
    value = os.environ.get(variable, "")
    if value not in ("", "true"):
        raise ConfigurationError(f"{variable}={value!r}; use true, or leave it out")
    return bool(value)
