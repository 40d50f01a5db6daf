"""Processes: what must be made anew in a forked one."""
