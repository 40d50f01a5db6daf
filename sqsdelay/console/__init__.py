"""The console: a web page to see what waits, what is late and what failed, and to act."""

from __future__ import annotations

from importlib.util import find_spec

from sqsdelay.errors import MissingExtra

for _needed in ("starlette", "uvicorn", "jinja2", "python_multipart", "itsdangerous"):
    if find_spec(_needed) is None:
        raise MissingExtra(
            f"the console needs {_needed}, which is not installed; run: pip install 'sqsdelay[console]'"
        )
