"""Pointers to large bodies: the words of AWS's Extended Client Libraries, to the letter."""

from __future__ import annotations

import re

import pytest

from sqsdelay.core.message import Attribute
from sqsdelay.errors import MalformedMessage
from sqsdelay.sending.batches import (
    LEGACY_PAYLOAD_SIZE,
    PAYLOAD_SIZE,
    Pointer,
    payload_size,
    read_pointer,
)

SIZE: Attribute = {"DataType": "Number", "StringValue": "300000"}
BODY = (
    '["software.amazon.payloadoffloading.PayloadS3Pointer", '
    '{"s3BucketName": "large-bodies", "s3Key": "orders/7"}]'
)


def test_a_pointers_body_is_the_libraries_own() -> None:
    """Other languages' clients read it by these names."""
    assert Pointer("large-bodies", "orders/7").to_body() == BODY


def test_the_size_is_that_of_the_body_in_utf_8() -> None:
    """Bytes, not characters; a number."""
    assert payload_size("a\N{SNOWMAN}") == {"DataType": "Number", "StringValue": "4"}


@pytest.mark.parametrize("name", [PAYLOAD_SIZE, LEGACY_PAYLOAD_SIZE])
def test_either_attribute_tells_a_pointer(name: str) -> None:
    """Today's name or that of version 1."""
    assert read_pointer(BODY, {name: SIZE}) == Pointer("large-bodies", "orders/7")


def test_a_message_without_the_attribute_is_its_own_body() -> None:
    """Whatever its body looks like."""
    assert read_pointer(BODY, {"other": SIZE}) is None


@pytest.mark.parametrize("body", ["x", "[]", '["a", 7]', '["a", {"s3Key": "k"}]', "[" * 100_000])
def test_a_pointer_that_is_none_is_refused_without_its_body(body: str) -> None:
    """The body may be a secret: its length is told."""
    told = (
        "the message has the attribute ExtendedPayloadSize, and its body of "
        f"{len(body)} characters is not a pointer to a large body"
    )
    with pytest.raises(MalformedMessage, match=f"^{re.escape(told)}$"):
        read_pointer(body, {PAYLOAD_SIZE: SIZE})
