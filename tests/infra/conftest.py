"""CDK apps as ``cdk.json`` configures them, and the app run as a command."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from aws_cdk import App, Stack
from aws_cdk.assertions import Template
from moto import mock_aws

from infra.context import Deployment
from infra.endpoint_stack import EndpointStack, stack_name
from infra.local import ROOT
from sqsdelay.cdk import function_names
from sqsdelay.cdk.unrestricted_delay import STORES
from sqsdelay.core.endpoint import Endpoint
from tests.patience import ended
from tests.services.endpoints import create_endpoint

CONTEXT: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]
ACCOUNT = "123456789012"
REGION = "eu-west-1"
EVERY_PART = {
    "alarmTopicArn": f"arn:aws:sns:{REGION}:{ACCOUNT}:ops",
    "removalPolicy": "destroy",
    "largeBodies": "true",
    "ledger": "s3",
}
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
SUBNET = "subnet-0123456789abcdef"
GROUP = "sg-0123456789abcdef0"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/Boundary"
WANTED = {
    "endpoint": "wanted.fifo",
    "store": "dynamodb",
    "largeBodies": "true",
    "kmsKeyArn": KEY,
    "permissionsBoundaryArn": BOUNDARY,
    "vpcId": "vpc-0123456789abcdef0",
    "subnetIds": f"{SUBNET}1,{SUBNET}2",
    "securityGroupIds": GROUP,
    "memoryMb": "512",
    "logRetentionDays": "365",
    "tracing": "true",
}
"""Keys, network, memory, logs, traces and roles as an account wants them."""
ALL_THERE_IS = (
    *(
        EVERY_PART | {"store": store, "queueArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:orders-{store}"}
        for store in STORES
    ),
    WANTED,
)


@pytest.fixture
def stack() -> Stack:
    """An empty stack of somebody's app."""
    return Stack(App(context=CONTEXT), "theirs")


@pytest.fixture(scope="session")
def endpoint_template() -> Callable[..., Template]:
    """The template of an endpoint, `orders` unless named, under a deployment's settings; each made
    once."""
    made: dict[str, Template] = {}

    def template(name: str = "orders", queue_arn: str | None = None, **settings: Any) -> Template:
        key = repr((name, queue_arn, sorted(settings.items())))
        if key not in made:
            endpoint = Endpoint.parse(name)
            stack = EndpointStack(
                App(context=CONTEXT),
                stack_name(endpoint),
                endpoint=endpoint,
                deployment=Deployment(
                    endpoints=(endpoint,), queue_arn=queue_arn, settings=settings
                ),
            )
            made[key] = Template.from_stack(stack)
        return made[key]

    return template


@pytest.fixture(scope="session")
def all_there_is(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the CDK makes of every part with every kind of store, on queues that exist, and of
    everything an account may want: in one app, for starting one and its validation takes longer than
    all the stacks."""
    from aws_cdk import Validations
    from cdk_nag import AwsSolutionsChecks, ServerlessChecks

    folder = tmp_path_factory.mktemp("all")
    app = App(context=CONTEXT, outdir=str(folder))
    Validations.of(app).add_plugins(AwsSolutionsChecks(app), ServerlessChecks(app))
    synthesise(app, *ALL_THERE_IS)
    return folder


def synthesise(app: App, *contexts: Mapping[str, str]) -> None:
    """The stack of each context, by any version of the CDK."""
    for context in contexts:
        deployment = Deployment.read(context.get)
        [endpoint] = deployment.endpoints
        EndpointStack(app, stack_name(endpoint), endpoint=endpoint, deployment=deployment)
    app.synth()


@pytest.fixture
def run_app(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run app.py as the CDK's command line does; what it makes is in ``tmp_path``."""

    def run(script: str = "app.py", **context: str) -> subprocess.CompletedProcess[str]:
        command = json.loads((ROOT / "cdk.json").read_text())["app"].replace("app.py", script)
        return ended(
            command,
            shell=True,
            cwd=ROOT,
            env=os.environ
            | {"CDK_OUTDIR": str(tmp_path), "CDK_CONTEXT_JSON": json.dumps(CONTEXT | context)},
        )

    return run


Templates = Callable[..., Template]


def working(template: Template, kind: str, **properties: Any) -> dict[str, dict[str, Any]]:
    """The resources of a kind with these properties, less the removal guard's, which moves nothing."""
    found = template.find_resources(kind, {"Properties": properties})
    return {name: dict(each) for name, each in found.items() if "RemovalGuard" not in name}


def only(template: Template, kind: str, **properties: Any) -> dict[str, Any]:
    """The one resource of a kind with these properties."""
    [found] = working(template, kind, **properties).values()
    return found


def logical_id(template: Template, kind: str, **properties: Any) -> str:
    [found] = working(template, kind, **properties)
    return found


def arn(template: Template, queue: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [logical_id(template, "AWS::SQS::Queue", QueueName=queue), "Arn"]}


def function(template: Template, handler: str) -> dict[str, Any]:
    """The properties of the function with that handler."""
    return dict(only(template, "AWS::Lambda::Function", Handler=handler)["Properties"])


def statements(template: Template, handler: str) -> list[dict[str, Any]]:
    """What the role of the function with that handler may do."""
    role = function(template, handler)["Role"]["Fn::GetAtt"][0]
    [policy] = template.find_resources("AWS::IAM::Role")[role]["Properties"]["Policies"]
    return list(policy["PolicyDocument"]["Statement"])


def policies(template: Template) -> list[dict[str, Any]]:
    """The statements of all policies beside the roles' own."""
    found = template.find_resources("AWS::IAM::Policy").values()
    return [s for policy in found for s in policy["Properties"]["PolicyDocument"]["Statement"]]


def actions(granted: list[dict[str, Any]], service: str) -> set[str]:
    """Those of one service."""
    found = [each["Action"] for each in granted]
    listed = [each if isinstance(each, list) else [each] for each in found]
    return {each for some in listed for each in some if each.startswith(f"{service}:")}


IAM_NAMES = {
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "HeadObject": "GetObject",
    "HeadBucket": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "ConditionCheck": "ConditionCheckItem",
}
"""Of calls whose action has another. Source: service authorization reference."""


class Calls:
    """The IAM actions of the calls that clients of boto3's session make on an endpoint on moto, and on which
    queue."""

    def __init__(self, session: boto3.Session) -> None:
        self.made: set[tuple[str, str]] = set()
        session.events.register("provide-client-params", self._note)

    def _note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        queue = params.get("QueueName") or params.get("QueueUrl", "").rpartition("/")[2]
        names = [model.name.removesuffix("Batch")]
        if model.name == "TransactWriteItems":  # IAM asks for each write of a transaction.
            names = [IAM_NAMES.get(k, f"{k}Item") for item in params["TransactItems"] for k in item]
        service = model.service_model.endpoint_prefix
        self.made |= {(f"{service}:{IAM_NAMES.get(name, name)}", queue) for name in names}

    def of(self, service: str) -> set[str]:
        return {action for action, _ in self.made if action.startswith(f"{service}:")}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """From now on."""
    with mock_aws():
        client = boto3.client("sqs")
        create_endpoint(client, "orders")
        client.create_queue(QueueName="orders-parking")
        session = boto3.Session()
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)
        yield Calls(session)


Stores = Callable[[type[Any]], Any]


@pytest.fixture
def opened(calls: Calls) -> Iterator[Stores]:
    """Makes a store of a kind, and opens it anew: the calls are those of its use."""
    with ExitStack() as at_end:

        def opened(kind: type[Any]) -> Any:
            with closing(kind("parked", endpoint="orders")) as store:
                store.set_up()
            calls.made.clear()
            return at_end.enter_context(closing(kind("parked", endpoint="orders")))

        yield opened


@pytest.fixture
def dispatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs the dispatcher's function, with a store's URL and an event."""
    from lambdas.dispatcher import handler

    def run(store: str, event: Mapping[str, Any], *, seconds: int) -> Any:
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders-dispatcher")
        monkeypatch.setenv(function_names.ENDPOINT_VARIABLE, "orders")
        monkeypatch.setenv(function_names.STORE_VARIABLE, store)
        context = SimpleNamespace(get_remaining_time_in_millis=lambda: 1000 * seconds)
        return handler.handler(event, context)

    handler.function.cache_clear()
    yield run
    handler.function().store.close()
    handler.function.cache_clear()
