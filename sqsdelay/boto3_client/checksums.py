"""The MD5s SQS answers a send with. Source: SQS developer guide, "Calculating the MD5 message digest"."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

BODY: Final = "MD5OfMessageBody"
ATTRIBUTES: Final = "MD5OfMessageAttributes"
SYSTEM_ATTRIBUTES: Final = "MD5OfMessageSystemAttributes"


def md5s(entry: Mapping[str, Any]) -> dict[str, str]:
    """What SQS answers for a message, under the names it uses.

    Args:
        entry: ``MessageBody``, ``MessageAttributes`` and ``MessageSystemAttributes`` in boto3's
            shape, binary values as bytes.
    """
    found = {BODY: _md5(entry["MessageBody"].encode())}
    if entry.get("MessageAttributes"):
        found[ATTRIBUTES] = _md5(_encoded(entry["MessageAttributes"]))
    if entry.get("MessageSystemAttributes"):
        found[SYSTEM_ATTRIBUTES] = _md5(_encoded(entry["MessageSystemAttributes"]))
    return found


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _encoded(attributes: Mapping[str, Any]) -> bytes:
    parts = []
    for name in sorted(attributes):
        attribute = attributes[name]
        binary = attribute["DataType"].startswith("Binary")
        value = attribute["BinaryValue"] if binary else attribute["StringValue"].encode()
        parts += [_sized(name.encode()), _sized(attribute["DataType"].encode())]
        parts += [b"\x02" if binary else b"\x01", _sized(value)]
    return b"".join(parts)


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
