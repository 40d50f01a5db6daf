"""The table in which delayed messages wait: the delayed message store on DynamoDB."""

from __future__ import annotations

from typing import Any, Final

from aws_cdk import CfnDeletionPolicy, RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_kms as kms
from constructs import Construct

from sqsdelay.limits import STORE_TABLE_SUFFIX
from sqsdelay.stores.dynamodb import table_definition
from sqsdelay.stores.dynamodb.dynamodb_store import STANDARD
from sqsdelay.stores.dynamodb.layout import EXPIRY

_TYPES: Final = {"S": dynamodb.AttributeType.STRING, "N": dynamodb.AttributeType.NUMBER}


class StoreTable(dynamodb.Table):
    """Keys and billing as the store defines them; restorable to any second of 35 days.

    Args:
        endpoint: the destination queue's name, which may be a token.
        table_class: ``STANDARD`` or ``STANDARD_INFREQUENT_ACCESS``.
        encryption_key: one that AWS manages when None.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: str,
        removal_policy: RemovalPolicy,
        table_class: str = STANDARD,
        encryption_key: kms.IKey | None = None,
    ) -> None:
        definition = table_definition()
        types = {a["AttributeName"]: a["AttributeType"] for a in definition["AttributeDefinitions"]}
        keys: dict[str, Any] = {
            {"HASH": "partition_key", "RANGE": "sort_key"}[key["KeyType"]]: dynamodb.Attribute(
                name=key["AttributeName"], type=_TYPES[types[key["AttributeName"]]]
            )
            for key in definition["KeySchema"]
        }
        super().__init__(
            scope,
            construct_id,
            table_name=endpoint + STORE_TABLE_SUFFIX,
            **keys,
            billing_mode=dynamodb.BillingMode(definition["BillingMode"]),
            table_class=dynamodb.TableClass(table_class),
            # Amendments, and messages that are released.
            time_to_live_attribute=EXPIRY,
            encryption=dynamodb.TableEncryption.AWS_MANAGED
            if encryption_key is None
            else dynamodb.TableEncryption.CUSTOMER_MANAGED,
            encryption_key=encryption_key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            removal_policy=removal_policy,
        )
        # What waits in a table is still to be moved when another one takes its place.
        self.node.default_child.cfn_options.update_replace_policy = CfnDeletionPolicy.RETAIN  # type: ignore[union-attr]
