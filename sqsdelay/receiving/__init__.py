"""Receiving a message once: keys and inboxes for receivers."""

from sqsdelay.receiving.deduplication import Copy, Deduplicator, Inbox, message_id

__all__ = ["Copy", "Deduplicator", "Inbox", "message_id"]
