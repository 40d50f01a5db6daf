"""Somebody's own stack: a queue of theirs, our construct on it, and users with one helper's grants each."""

from aws_cdk import App, CfnOutput, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs

from sqsdelay.cdk import UnrestrictedDelay


def add_shop(app: App) -> None:
    """Into their app; its outputs are what the tests ask for."""
    stack = Stack(app, "shop")
    orders = sqs.Queue(stack, "Orders")
    delay = UnrestrictedDelay(
        stack, "Delay", queue=orders, hop_seconds=1, store="dynamodb", large_bodies=True
    )
    assert delay.store is not None
    assert delay.body_bucket is not None
    producer, keeper, receiver = (
        iam.User(stack, name) for name in ("Producer", "Keeper", "Receiver")
    )
    delay.grant_send(producer)
    delay.store.grant_store(keeper)
    delay.body_bucket.grant_fetch(receiver)
    for name, value in (
        ("QueueName", orders.queue_name),
        ("QueueUrl", orders.queue_url),
        ("QueueArn", orders.queue_arn),
        ("DelayQueueUrl", delay.delay_queue.queue_url),
        ("DelayQueueArn", delay.delay_queue.queue_arn),
        ("ErrorQueueUrl", delay.error_queue.queue_url),
        ("ErrorQueueArn", delay.error_queue.queue_arn),
        ("TableName", delay.store.table.table_name),
        ("TableArn", delay.store.table.table_arn),
        ("BucketName", delay.body_bucket.bucket_name),
        ("BucketArn", delay.body_bucket.bucket_arn),
        ("FunctionName", delay.function.function_name),
        ("DispatcherName", delay.store.function.function_name),
        ("GuardName", delay.removal_guard.function.function_name),
        ("StackId", stack.stack_id),
        ("ProducerName", producer.user_name),
        ("KeeperName", keeper.user_name),
        ("ReceiverName", receiver.user_name),
    ):
        CfnOutput(stack, name, value=value)
