"""The Spark data source: rows become delayed messages."""
