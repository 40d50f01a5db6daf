"""A ledger in Amazon Data Firehose, which keeps it in S3 (boto3)."""

from sqsdelay.firehose.ledger import FirehoseLedger

__all__ = ["FirehoseLedger"]
