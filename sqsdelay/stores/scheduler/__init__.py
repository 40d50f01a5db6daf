"""Messages wait as one-time schedules of EventBridge Scheduler; nothing runs until they fire."""
