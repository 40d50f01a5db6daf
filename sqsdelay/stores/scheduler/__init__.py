"""Messages wait as one-time schedules of EventBridge Scheduler; nothing runs until they fire."""

from sqsdelay.stores.scheduler.scheduler_store import SchedulerStore

__all__ = ["SchedulerStore"]
