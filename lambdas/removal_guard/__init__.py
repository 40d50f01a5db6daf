"""The removal guard: refuses a deployment that would let go of messages without being line to."""
