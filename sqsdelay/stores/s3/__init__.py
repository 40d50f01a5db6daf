"""Delayed messages in Amazon S3 (boto3), many to an object, by the slot of their due time."""

from sqsdelay.stores.s3.s3_store import S3Store

__all__ = ["S3Store"]
