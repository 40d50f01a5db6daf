"""The serverless store: a DynamoDB table."""

from sqsdelay.stores.dynamodb.dynamodb_store import (
    DEFAULT_SHARDS,
    INFREQUENT_ACCESS,
    MAX_SHARDS,
    STANDARD,
    TABLE_CLASSES,
    DynamoDbStore,
)
from sqsdelay.stores.dynamodb.layout import EXPIRY
from sqsdelay.stores.dynamodb.table import table_definition

__all__ = [
    "DEFAULT_SHARDS",
    "EXPIRY",
    "INFREQUENT_ACCESS",
    "MAX_SHARDS",
    "STANDARD",
    "TABLE_CLASSES",
    "DynamoDbStore",
    "table_definition",
]
