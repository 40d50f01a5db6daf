"""X-Ray's trace header: what it says, and the header of a delivery, which begins a trace of its own."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

_TRACE_ID: Final = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})", re.ASCII | re.IGNORECASE)
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII | re.IGNORECASE)
_CHANCE_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """A span's place in a trace.

    Source: AWS X-Ray Developer Guide, "Tracing header". A trace id of W3C's, which OpenTelemetry has, is
    the same 32 digits without the dashes.

    Args:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits; None where no span has begun the trace.
        sampled: None where nobody has decided.
    """

    trace_id: str
    span_id: str | None = None
    sampled: bool | None = None

    @classmethod
    def read(cls, header: str | None) -> TraceHeader | None:
        """What a header says; None where there is none, or nothing that can be read."""
        parts = dict(part.strip().partition("=")[::2] for part in (header or "").split(";"))
        root = _TRACE_ID.fullmatch(parts.get("Root", ""))
        if root is None:
            return None
        parent = parts.get("Parent", "")
        return cls(
            (root[1] + root[2]).lower(),
            parent.lower() if _SPAN_ID.fullmatch(parent) else None,
            {"0": False, "1": True}.get(parts.get("Sampled", "")),
        )

    def __str__(self) -> str:
        parts = [f"Root=1-{self.trace_id[:8]}-{self.trace_id[8:]}"]
        if self.span_id is not None:
            parts.append(f"Parent={self.span_id}")
        if self.sampled is not None:
            parts.append(f"Sampled={int(self.sampled)}")
        return ";".join(parts)


def of_new_trace(header: str | None, *, at_ms: int) -> str | None:
    """The header of a message on arrival, in place of its sender's, whose trace may be months old.

    X-Ray keeps a trace for 30 days, and what joins it later is lost. The sender's sampling decision
    stays. A message without a header gets none.

    Args:
        header: the sender's.
        at_ms: when the message arrives, which X-Ray reads in the trace id, epoch milliseconds.
    """
    if header is None:
        return None
    sent_with = TraceHeader.read(header)
    seconds = min(max(at_ms, 0) // 1000, 0xFFFFFFFF)
    trace_id = f"{seconds:08x}{secrets.token_hex(_CHANCE_BYTES)}"
    return str(TraceHeader(trace_id, sampled=None if sent_with is None else sent_with.sampled))
