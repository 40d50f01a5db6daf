"""Sending: the checks, the route, the first send."""
