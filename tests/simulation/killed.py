"""The end of a process under virtual time."""

from __future__ import annotations


class Killed(BaseException):
    """The process dies here: nothing that it would have done afterwards happens."""
