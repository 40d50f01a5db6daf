"""A host of its own beside this one (a network namespace), that can lose its power."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from typing import Any

HERE = "10.213.7.1"
"""This machine's address, as the host sees it."""
_THERE = "10.213.7.2"


class VanishingHost:
    """Runs processes that reach this machine at `HERE`, until the power goes.

    Raises:
        RuntimeError: this machine can have no such host; what it takes.
    """

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        self._space, self._near, self._far = f"gone-{name}", f"n{name}", f"f{name}"

    def __enter__(self) -> VanishingHost:
        _check()
        _ip("netns", "add", self._space)
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far)
        _ip("link", "set", self._far, "netns", self._space)
        _ip("addr", "add", f"{HERE}/30", "dev", self._near)
        _ip("link", "set", self._near, "up")
        _ip("-n", self._space, "addr", "add", f"{_THERE}/30", "dev", self._far)
        _ip("-n", self._space, "link", "set", self._far, "up")
        return self

    def __exit__(self, *error: object) -> None:
        _ip("netns", "del", self._space)
        subprocess.run(["ip", "link", "del", self._near], check=False, capture_output=True)

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """A process on the host."""
        return subprocess.Popen(["ip", "netns", "exec", self._space, *command], **options)

    def lose_power(self) -> None:
        """Nothing comes from the host any more: no packet, not even that a connection is closed."""
        _ip("-n", self._space, "link", "set", self._far, "down")


def _check() -> None:
    """Nothing else can be silent like a host without power: of a stopped process the kernel goes on
    to answer keepalives."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise RuntimeError(
            "a test needs a host that can lose its power: run it as root (sudo), with iproute2 "
            "installed (apt-get install iproute2)"
        )
    probe = ["unshare", "--net", "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"]
    tried = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=30)
    if tried.returncode:
        raise RuntimeError(
            "a test needs a host that can lose its power, and network namespaces are refused here "
            f"({tried.stderr.strip()}); in a container: --cap-add=NET_ADMIN --cap-add=SYS_ADMIN"
        )


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)
