"""``python -m tests.approved``: approve what the code says now."""

from __future__ import annotations

from tests.approved import payloads, public_face

public_face.FILE.write_text(public_face.public_face())
for path, text in payloads.payloads().items():
    path.write_text(text)
