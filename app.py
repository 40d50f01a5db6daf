"""The CDK app: one stack per endpoint. Context in, stacks out; see docs/deploy.md."""

from __future__ import annotations

import os
import sys

from aws_cdk import App, Validations
from cdk_nag import AwsSolutionsChecks, ServerlessChecks

from infra.context import Deployment, refuse_unknown_keys
from infra.endpoint_stack import EndpointStack, NoEndpointStack, stack_name
from sqsdelay.errors import SqsDelayError


def main() -> None:
    """Synthesise what the context asks for; what is wrong with it is one line on stderr."""
    app = App()
    Validations.of(app).add_plugins(AwsSolutionsChecks(app), ServerlessChecks(app))
    try:
        refuse_unknown_keys(app.node.get_all_context())
        deployment = Deployment.read(
            app.node.try_get_context,
            account=os.environ.get("CDK_DEFAULT_ACCOUNT"),
            region=os.environ.get("CDK_DEFAULT_REGION"),
        )
        if not deployment.endpoints:
            NoEndpointStack(app, "sqsdelay-no-endpoint-given")
        for endpoint in deployment.endpoints:
            EndpointStack(app, stack_name(endpoint), endpoint=endpoint, deployment=deployment)
    except SqsDelayError as error:
        sys.exit(f"sqsdelay: {error}")
    app.synth()


if __name__ == "__main__":
    main()
