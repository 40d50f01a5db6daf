"""Large bodies in Amazon S3 (boto3)."""

from sqsdelay.s3.bucket import Bucket
from sqsdelay.s3.reader import BodyReader

__all__ = ["BodyReader", "Bucket"]
