"""Approved files: the public face and the wire payloads, compared with the code by tests/unit.

``python -m tests.approved`` writes them anew; what changed is then a diff to be read and committed.
"""
