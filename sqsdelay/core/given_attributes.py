"""Message attributes as people write them: in boto3's JSON, or as ``NAME:TYPE=VALUE``."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, cast

from sqsdelay.core.message import AttributeInput
from sqsdelay.errors import InvalidMessage


def attributes_of_texts(texts: Iterable[str]) -> dict[str, AttributeInput]:
    """The attributes of ``NAME=VALUE`` and ``NAME:TYPE=VALUE``; a Binary value is base64.

    Raises:
        InvalidMessage: it is neither, names one attribute twice, or is not base64.
    """
    found: dict[str, AttributeInput] = {}
    for text in texts:
        named, equals, value = text.partition("=")
        name, _, kind = named.partition(":")
        kind = kind or "String"
        if not name or not equals:
            raise InvalidMessage(
                f"{text!r} is not NAME=VALUE or NAME:TYPE=VALUE, such as tenant=acme or tries:Number=3"
            )
        if name in found:
            raise InvalidMessage(f"{name!r} is given twice")
        field = "BinaryValue" if kind.partition(".")[0] == "Binary" else "StringValue"
        found[name] = attribute_of(name, {"DataType": kind, field: value})
    return found


def attribute_of(name: str, value: Any) -> AttributeInput:
    """As in the AWS CLI: a BinaryValue is base64.

    Raises:
        InvalidMessage: it is not.
    """
    if isinstance(value, dict) and isinstance(value.get("BinaryValue"), str):
        try:
            binary = base64.b64decode(value["BinaryValue"], validate=True)
        except ValueError as error:
            raise InvalidMessage(
                f"attribute {name!r}: BinaryValue is not base64: {error}"
            ) from error
        value = {**value, "BinaryValue": binary}
    return cast(AttributeInput, value)  # what it is, the sender checks
