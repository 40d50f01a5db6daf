"""Delayed messages in Amazon S3 (boto3), many to an object, by the slot of their due time."""
