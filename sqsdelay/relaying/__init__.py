"""Relaying: one hop of each copy that waits in a delay queue."""
