"""The serverless store: a DynamoDB table."""

from sqsdelay.stores.dynamodb.dynamodb_store import DynamoDbStore
from sqsdelay.stores.dynamodb.table import table_definition

__all__ = ["DynamoDbStore", "table_definition"]
