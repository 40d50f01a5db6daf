"""The deployed functions, a folder each, and how their code is put together."""
