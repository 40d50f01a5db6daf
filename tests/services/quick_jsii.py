"""The CDK's classes without its Node process, which loads 150 MB, until one of them is used: every process of
a run imports them all to collect the tests, and few run those."""

from __future__ import annotations

from typing import Any

from jsii._kernel.providers.process import ProcessProvider
from jsii._kernel.types import LoadRequest, LoadResponse

_provider: Any = ProcessProvider
_start: Any = ProcessProvider._process
_loads: list[LoadRequest] = []


def _process(provider: ProcessProvider) -> Any:
    process = _start.fget(provider)
    while _loads:
        process.send(_loads.pop(0), LoadResponse)
    return process


_provider._process = property(_process)
_provider.load = lambda _, request: _loads.append(request)
