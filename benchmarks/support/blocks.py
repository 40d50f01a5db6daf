"""Blocks of a document that a script writes, so that nobody types its figures."""

from __future__ import annotations


def rewritten(document: str, script: str, name: str, made: str) -> str:
    """The document with another block of that script and name.

    Raises:
        ValueError: the document has no such block.
    """
    begin, end = (f"<!-- made by {script}: {edge} {name} -->" for edge in ("begin", "end"))
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the document has no block {name!r}; add {begin} and {end}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"
