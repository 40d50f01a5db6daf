"""What each fork of the forkserver finds done: imports, the tree of commands, what botocore reads."""

import encodings.idna
import gc

import psycopg
import rich.table
import typer._adapters
import typer.rich_utils
from boto3.session import Session

import sqsdelay.opentelemetry.telemetry
import sqsdelay.rabbitmq.administration
import sqsdelay.rabbitmq.timeouts
import sqsdelay.sending.async_sender
import sqsdelay.sqs.consumer
import sqsdelay.sqs.endpoints
import sqsdelay.sqs.sender
import sqsdelay.stores.dynamodb.dynamodb_store
import sqsdelay.stores.postgres.postgres_store
import sqsdelay.stores.s3.s3_store
import sqsdelay.stores.sqlite.sqlite_store
from sqsdelay.cli import app
from tests.services.processes import built
from tests.services.quick_aws import quicken_botocore

__all__ = ("encodings", "psycopg", "rich", "sqsdelay", "typer")

quicken_botocore()
for service in ("sqs", "dynamodb", "s3"):
    Session("of nobody", "secret", region_name="us-east-1").client(service)
app.rich_markup_mode = None  # as in a pipe
built(app, None)
gc.freeze()
