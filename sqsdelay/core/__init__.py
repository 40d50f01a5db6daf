"""The pure policy: decisions as functions of a message and a time. No I/O, no vendor."""
