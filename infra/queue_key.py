"""A destination queue under a KMS key of its owner's."""

from __future__ import annotations

from typing import Final

SEND_UNDER_KEY: Final = ("kms:Decrypt", "kms:GenerateDataKey")
"""What sending to it takes, for SQS reuses data keys. Source: SQS developer guide, key management,
"Configure KMS permissions for producers"."""
