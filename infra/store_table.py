"""The table in which delayed messages wait: the delayed message store on DynamoDB."""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

from sqsdelay.limits import STORE_TABLE_SUFFIX
from sqsdelay.stores.dynamodb import table_definition
from sqsdelay.stores.dynamodb.amendments import EXPIRY

_TYPES: Final = {"S": dynamodb.AttributeType.STRING, "N": dynamodb.AttributeType.NUMBER}


class StoreTable(dynamodb.Table):
    """Keys, index and billing as the store defines them; restorable to any second of 35 days.

    Args:
        endpoint: the destination queue's name, which may be a token.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        removal_policy: RemovalPolicy,
    ) -> None:
        definition = table_definition()
        super().__init__(
            scope,
            construct_id,
            table_name=endpoint + STORE_TABLE_SUFFIX,
            **_keys(definition, definition),
            billing_mode=dynamodb.BillingMode(definition["BillingMode"]),
            # Amendments expire; messages have no such attribute and never do.
            time_to_live_attribute=EXPIRY,
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            removal_policy=removal_policy,
        )
        indexes = definition["GlobalSecondaryIndexes"]
        for index in indexes:
            projection = index["Projection"]
            self.add_global_secondary_index(
                index_name=index["IndexName"],
                **_keys(index, definition),
                projection_type=dynamodb.ProjectionType(projection["ProjectionType"]),
                non_key_attributes=projection["NonKeyAttributes"],
            )
        self.index_arns = [f"{self.table_arn}/index/{index['IndexName']}" for index in indexes]


def _keys(keyed: dict[str, Any], definition: dict[str, Any]) -> dict[str, Any]:
    """The keys of a table or index, under the construct's names."""
    types = {a["AttributeName"]: a["AttributeType"] for a in definition["AttributeDefinitions"]}
    return {
        {"HASH": "partition_key", "RANGE": "sort_key"}[key["KeyType"]]: dynamodb.Attribute(
            name=key["AttributeName"], type=_TYPES[types[key["AttributeName"]]]
        )
        for key in keyed["KeySchema"]
    }
