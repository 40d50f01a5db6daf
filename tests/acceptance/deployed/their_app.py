"""Somebody's own CDK app, for `test_endpoint`: a queue of theirs, our construct on it."""

from __future__ import annotations

from aws_cdk import App, CustomResource, RemovalPolicy, Stack
from aws_cdk import aws_sqs as sqs

from sqsdelay.cdk import UnrestrictedDelay


def main() -> None:
    """The context says what: ``kind``, ``store``, ``dueQueue``; ``broken`` fails the deployment."""
    app = App()
    given = app.node.try_get_context
    stack = Stack(app, "theirs")
    fifo = given("kind") == "fifo"
    queue = sqs.Queue(
        stack,
        "Fifo" if fifo else "Standard",
        queue_name="theirs.fifo" if fifo else "theirs",
        fifo=True if fifo else None,
    )
    delay = UnrestrictedDelay(
        stack,
        "Delay",
        queue=queue,
        store=given("store"),
        due_queue=False if given("dueQueue") == "none" else None,
        hop_seconds=1,
        removal_policy=RemovalPolicy.DESTROY,
    )
    if given("broken"):
        nobody = f"arn:aws:lambda:{stack.region}:{stack.account}:function:nobody"
        broken = CustomResource(stack, "Broken", service_token=nobody)
        broken.node.add_dependency(delay)
    app.synth()


if __name__ == "__main__":
    main()
