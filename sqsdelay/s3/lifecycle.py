"""A bucket's lifecycle rules, as far as they could delete a body before its message arrives."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from sqsdelay.core.delay import utc
from sqsdelay.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Expiry:
    """A rule that deletes objects: so many days after they were put, or at an instant."""

    rule: str
    days: int | None
    at: datetime | None

    def refuse(self, bucket: str, *, now_ms: int, needed_until_ms: int) -> None:
        """Raise if an object put now could be deleted before it is needed no more.

        Raises:
            ConfigurationError
        """
        if self.at is not None:
            expires_ms = round(self.at.timestamp() * 1000)
        else:
            expires_ms = now_ms + (self.days or 0) * _DAY_MS
        if expires_ms < needed_until_ms:
            raise ConfigurationError(
                f"lifecycle rule {self.rule!r} of bucket {bucket} deletes bodies at "
                f"{utc(expires_ms):%Y-%m-%d}, and this one is needed until "
                f"{utc(needed_until_ms):%Y-%m-%d} (its due time and 14 days in the destination queue); "
                "lengthen the rule, keep it from these keys (prefix=), or use another bucket"
            )


def expiries(client: S3Client, bucket: str, prefix: str) -> list[Expiry]:
    """The bucket's rules that apply to keys of this prefix.

    None when the rules may not be read: the log says so.

    Raises:
        ClientError: the bucket cannot be asked, for another reason.
    """
    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code == "NoSuchLifecycleConfiguration":
            return []
        if code == "AccessDenied":
            logger.warning("lifecycle rules of %s not read, s3:GetLifecycleConfiguration", bucket)
            return []
        raise
    return [expiry for rule in rules for expiry in _expiry(rule, prefix)]


def _expiry(rule: Mapping[str, Any], prefix: str) -> Iterator[Expiry]:
    expiration = rule.get("Expiration", {})
    if rule.get("Status") != "Enabled" or not ({"Days", "Date"} & set(expiration)):
        return
    filtered = rule.get("Filter", {})
    both = filtered.get("And", filtered)
    if both.get("Tag") or both.get("Tags"):
        return  # bodies carry no tags
    ruled = both.get("Prefix", rule.get("Prefix", "")) or ""
    if prefix.startswith(ruled) or ruled.startswith(prefix):
        yield Expiry(
            rule.get("ID", "without a name"), expiration.get("Days"), expiration.get("Date")
        )
