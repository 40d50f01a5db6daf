"""What ``sqsdelay.rabbitmq`` offers by name."""

from __future__ import annotations

import sqsdelay.rabbitmq as adapter


def test_every_public_name_is_there() -> None:
    """`__all__` and the lazy attributes agree, also once a module of a like name is loaded."""
    assert sorted(adapter._HOMES) == sorted(adapter.__all__)
    for _ in range(2):
        named = {name: getattr(adapter, name) for name in adapter.__all__}
        assert named.pop("MAX_DELAY_SECONDS") == 268_435_455
        assert {name: value.__name__ for name, value in named.items()} == {n: n for n in named}
