"""The relay under faults, with real servers and processes."""
