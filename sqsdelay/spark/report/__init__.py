"""The report: what became of every message of a ledger, worked out by Spark."""
