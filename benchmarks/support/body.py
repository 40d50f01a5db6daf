"""The message that the costs are measured with."""

from __future__ import annotations

import base64
import json
import random
from typing import Final

BODY: Final = json.dumps(
    {"order": 7, "text": base64.b85encode(random.Random(7).randbytes(144)).decode()}
)
"""204 bytes of noise as text can be: they deflate to 182, where an order's JSON becomes half of it."""
