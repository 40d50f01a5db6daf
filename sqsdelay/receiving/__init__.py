"""Receiving a message once: keys and inboxes for receivers."""

from sqsdelay.receiving.deduplication import IDEMPOTENCY_KEY, Copy, Deduplicator, Inbox, message_id

__all__ = ["IDEMPOTENCY_KEY", "Copy", "Deduplicator", "Inbox", "message_id"]
