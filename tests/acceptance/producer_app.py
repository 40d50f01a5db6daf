"""Somebody's own CDK app: a queue of theirs, our construct on it, a user who may send and no more."""

from aws_cdk import App, CfnOutput, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs

from infra.unrestricted_delay import UnrestrictedDelay

app = App()
stack = Stack(app, "shop")
orders = sqs.Queue(stack, "Orders")
delay = UnrestrictedDelay(stack, "Delay", queue=orders, hop_seconds=1)
producer = iam.User(stack, "Producer")
delay.grant_send(producer)
for name, value in (
    ("QueueName", orders.queue_name),
    ("QueueUrl", orders.queue_url),
    ("DelayQueueUrl", delay.delay_queue.queue_url),
    ("ErrorQueueUrl", delay.error_queue.queue_url),
    ("FunctionName", delay.function.function_name),
    ("ProducerName", producer.user_name),
):
    CfnOutput(stack, name, value=value)
app.synth()
