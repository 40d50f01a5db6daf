"""The removal guard: refuses a deployment that would abandon messages unless told to."""
