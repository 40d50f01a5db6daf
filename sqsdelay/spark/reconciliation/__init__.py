"""A job's table beside its receipts and a ledger; and what was lost of it, sent again."""
