"""Mutation testing of the core: changed code that no test notices (`make mutants`)."""
