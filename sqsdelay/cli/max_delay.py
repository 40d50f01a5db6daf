"""``--max-delay``: how far ahead an endpoint's messages may be due."""

from __future__ import annotations

from typing import Annotated

import typer

from sqsdelay.core.delay import delay_ms, parse_delay
from sqsdelay.core.hop import checked_max_delay
from sqsdelay.limits import DEFAULT_MAX_DELAY_SECONDS

MaxDelay = Annotated[
    str,
    typer.Option(
        help="The farthest that messages may be due, e.g. 3650d: senders refuse more, the delay "
        "consumer sends it to the error queue."
    ),
]
DEFAULT_MAX_DELAY = f"{DEFAULT_MAX_DELAY_SECONDS // 86_400}d"


def max_delay_seconds(text: str) -> int:
    """The option's value in seconds.

    Raises:
        InvalidDelay, ConfigurationError
    """
    return checked_max_delay(-(-delay_ms(parse_delay(text)) // 1000))
