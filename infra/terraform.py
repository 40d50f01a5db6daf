"""``python -m infra.terraform``: an endpoint as Terraform modules, made from the CloudFormation templates.

So a module's queues, policies, functions and alarms are the construct's, to the last attribute. What
Terraform does by itself is left out: the removal guard, for a plan shows what it would destroy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from infra.cloudformation import STORES, template
from infra.hcl import Expression, Nested, block, quoted, written

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "terraform"
HEADER: Final = (
    "# Made by `python -m infra.terraform` from the construct: change that, not this.\n\n"
)

_NAMES: Final = {
    "AWS::Region": "data.aws_region.this.name",
    "AWS::Partition": "data.aws_partition.this.partition",
    "AWS::AccountId": "data.aws_caller_identity.this.account_id",
}
_REFERRED: Final = {
    "AWS::SQS::Queue": ("aws_sqs_queue", "url"),
    "AWS::IAM::Role": ("aws_iam_role", "name"),
    "AWS::Lambda::Function": ("aws_lambda_function", "function_name"),
    "AWS::Logs::LogGroup": ("aws_cloudwatch_log_group", "name"),
    "AWS::DynamoDB::Table": ("aws_dynamodb_table", "name"),
    "AWS::Events::Rule": ("aws_cloudwatch_event_rule", "name"),
    "AWS::CloudWatch::Alarm": ("aws_cloudwatch_metric_alarm", "alarm_name"),
}
"""What a resource of CloudFormation's is in Terraform, and which attribute `Ref` stands for."""

_ATTRIBUTES: Final = {"Arn": "arn", "QueueName": "name"}
_KEEP: Final = Nested({"prevent_destroy": True})
"""As the construct keeps queues and table: a message in them is not to be lost with a plan."""

_EXTRA: Final = {
    "delay_consumer_archive": (
        "string", None, "Path of delay_consumer.zip, which `sqsdelay functions` writes",
    ),
    "dispatcher_archive": ("string", None, "Path of dispatcher.zip, which `sqsdelay functions` writes"),
    "runtime": ("string", "python3.14", "Runtime of the functions; Python 3.11 or newer"),
    "max_message_size": (
        "number", 1048576, "Bytes that a message may have; AWS provider 5 takes no more than 262144",
    ),
}  # fmt: skip
"""Variables for what is CloudFormation's own in the template."""


def snake(name: str) -> str:
    """``KmsKeyArn`` as Terraform writes it."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Module:
    """One module, from one template.

    Args:
        made: the template.
    """

    def __init__(self, made: dict[str, Any]) -> None:
        guard = "DelayRemovalGuard"
        self._resources = {n: r for n, r in made["Resources"].items() if not n.startswith(guard)}
        self._parameters = {
            name: given for name, given in made["Parameters"].items() if name[:4] != "Code"
        }
        self._outputs = made["Outputs"]

    def files(self) -> dict[str, str]:
        """The module's files, by name."""
        return {
            "main.tf": HEADER + "\n\n".join([*_DATA, *self._blocks()]) + "\n",
            "variables.tf": HEADER + "\n\n".join(self._variables()) + "\n",
            "outputs.tf": HEADER + "\n\n".join(self._told()) + "\n",
            "versions.tf": HEADER + _VERSIONS,
        }

    def _variables(self) -> Iterator[str]:
        for name, given in self._parameters.items():
            attributes: dict[str, Any] = {
                "description": given["Description"],
                "type": Expression("number" if given["Type"] == "Number" else "string"),
            }
            if "Default" in given:
                empty = given["Default"] == ""
                attributes["default"] = Expression("null") if empty else given["Default"]
            yield block(f'variable "{snake(name)}"', attributes)
        functions = [n for n, r in self._resources.items() if r["Type"] == "AWS::Lambda::Function"]
        for name, (kind, default, text) in _EXTRA.items():
            if name == "dispatcher_archive" and len(functions) == 1:
                continue
            attributes = {"description": text, "type": Expression(kind), "default": default}
            yield block(f'variable "{name}"', attributes)

    def _told(self) -> Iterator[str]:
        for name, given in self._outputs.items():
            yield block(f'output "{snake(name)}"', {"value": self._value(given["Value"])})

    def _blocks(self) -> Iterator[str]:
        for name, resource in self._resources.items():
            make = _MAKERS[resource["Type"]]
            for kind, label, attributes in make(self, self.label(name), resource["Properties"]):
                condition = resource.get("Condition")
                if condition is not None:
                    variable = snake(condition.removeprefix("Has"))
                    count = Expression(f"var.{variable} == null ? 0 : 1")
                    attributes = {"count": count, **attributes}
                yield block(f'resource "{kind}" "{label}"', attributes)

    @staticmethod
    def label(name: str) -> str:
        """A logical id without the construct's name and the hash."""
        plain = re.sub(r"[0-9A-F]{8}$", "", name).removeprefix("Delay")
        return snake(re.sub(r"AllowEventRule.*", "Permission", plain))

    def value(self, given: Any) -> Any:
        """A value of the template, as Terraform's."""
        return self._value(given)

    def _value(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._value(each) for each in given]
        if not isinstance(given, dict):
            return given
        if len(given) == 1:
            [(word, argument)] = given.items()
            if word == "Fn::Join":
                return Expression('"' + "".join(map(self._part, argument[1])) + '"')
            if word == "Fn::GetAtt":
                return self._attribute(argument[0], _ATTRIBUTES[argument[1]])
            if word == "Ref":
                return self._referred(argument)
            if word == "Fn::If":
                return self._either(*argument)
        return {key: self._value(each) for key, each in given.items()}

    def _part(self, given: Any) -> str:
        if isinstance(given, str):
            return quoted(given)[1:-1]
        return "${" + str(self._value(given)) + "}"

    def _attribute(self, name: str, attribute: str) -> Expression:
        kind, _ = _REFERRED[self._resources[name]["Type"]]
        return Expression(f"{kind}.{self.label(name)}.{attribute}")

    def _referred(self, name: str) -> Expression:
        if name == "AWS::NoValue":
            return Expression("null")
        if name in _NAMES:
            return Expression(_NAMES[name])
        if name in self._parameters:
            return Expression(f"var.{snake(name)}")
        return self._attribute(name, _REFERRED[self._resources[name]["Type"]][1])

    def _either(self, condition: str, given: Any, otherwise: Any) -> Expression:
        variable = snake(condition.removeprefix("Has"))
        if self._value(otherwise) == "null" and self._value(given) == f"var.{variable}":
            return Expression(f"var.{variable}")
        first, second = (written(self._value(each)) for each in (otherwise, given))
        return Expression(f"var.{variable} == null ? {first} : {second}")


Made = Iterator[tuple[str, str, dict[str, Any]]]


def _json(value: Any) -> Expression:
    return Expression(f"jsonencode({written(value, '  ')})")


def _queue(module: Module, label: str, given: dict[str, Any]) -> Made:
    v = {key: module.value(value) for key, value in given.items()}
    yield (
        "aws_sqs_queue",
        label,
        {
            "name": v["QueueName"],
            "fifo_queue": v.get("FifoQueue"),
            "deduplication_scope": v.get("DeduplicationScope"),
            "fifo_throughput_limit": v.get("FifoThroughputLimit"),
            "delay_seconds": v.get("DelaySeconds"),
            "visibility_timeout_seconds": v.get("VisibilityTimeout"),
            "message_retention_seconds": v["MessageRetentionPeriod"],
            "max_message_size": Expression("var.max_message_size"),
            "kms_master_key_id": v["KmsMasterKeyId"],
            "sqs_managed_sse_enabled": v["SqsManagedSseEnabled"],
            "lifecycle": _KEEP,
        },
    )


def _queue_policy(module: Module, label: str, given: dict[str, Any]) -> Made:
    [queue] = given["Queues"]
    policy = _json(module.value(given["PolicyDocument"]))
    yield "aws_sqs_queue_policy", label, {"queue_url": module.value(queue), "policy": policy}


def _table(module: Module, label: str, given: dict[str, Any]) -> Made:
    keys = {key["KeyType"]: key["AttributeName"] for key in given["KeySchema"]}
    attributes: dict[str, Any] = {
        "name": module.value(given["TableName"]),
        "billing_mode": given["BillingMode"],
        "table_class": given["TableClass"],
        "hash_key": keys["HASH"],
        "range_key": keys["RANGE"],
    }
    # A block may come several times: spaces, which are not written, keep their names apart.
    for number, each in enumerate(given["AttributeDefinitions"]):
        attribute = {"name": each["AttributeName"], "type": each["AttributeType"]}
        attributes["attribute" + " " * number] = Nested(attribute)
    recovery = given["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
    expiry = given["TimeToLiveSpecification"]
    key = Expression("var.kms_key_arn")
    attributes |= {
        "ttl": Nested({"attribute_name": expiry["AttributeName"], "enabled": expiry["Enabled"]}),
        "point_in_time_recovery": Nested({"enabled": recovery}),
        "server_side_encryption": Nested({"enabled": True, "kms_key_arn": key}),
        "lifecycle": _KEEP,
    }
    yield "aws_dynamodb_table", label, attributes


def _log_group(module: Module, label: str, given: dict[str, Any]) -> Made:
    name = Expression(f'"/sqsdelay/${{var.endpoint}}/{label.removesuffix("_log")}"')
    days = module.value(given["RetentionInDays"])
    yield "aws_cloudwatch_log_group", label, {"name": name, "retention_in_days": days}


def _role(module: Module, label: str, given: dict[str, Any]) -> Made:
    trust = _json(module.value(given["AssumeRolePolicyDocument"]))
    boundary = module.value(given["PermissionsBoundary"])
    yield "aws_iam_role", label, {"assume_role_policy": trust, "permissions_boundary": boundary}
    [policy] = given["Policies"]
    yield (
        "aws_iam_role_policy",
        label,
        {
            "name": policy["PolicyName"],
            "role": Expression(f"aws_iam_role.{label}.name"),
            "policy": _json(module.value(policy["PolicyDocument"])),
        },
    )


def _role_policy(module: Module, label: str, given: dict[str, Any]) -> Made:
    [role] = given["Roles"]
    policy = _json(module.value(given["PolicyDocument"]))
    yield (
        "aws_iam_role_policy",
        label,
        {"name": "Key", "role": module.value(role), "policy": policy},
    )


def _function(module: Module, label: str, given: dict[str, Any]) -> Made:
    v = {key: module.value(value) for key, value in given.items() if key != "Code"}
    function = "dispatcher" if "dispatcher" in label else "delay_consumer"
    role = str(v["Role"]).removeprefix("aws_iam_role.").removesuffix(".arn")
    logging = v["LoggingConfig"]
    yield (
        "aws_lambda_function",
        label,
        {
            "function_name": Expression(f'"${{var.endpoint}}-{function.replace("_", "-")}"'),
            "description": v["Description"],
            "filename": Expression(f"var.{function}_archive"),
            "source_code_hash": Expression(f"filebase64sha256(var.{function}_archive)"),
            "handler": v["Handler"],
            "runtime": Expression("var.runtime"),
            "architectures": v["Architectures"],
            "memory_size": v["MemorySize"],
            "timeout": v["Timeout"],
            "reserved_concurrent_executions": v.get("ReservedConcurrentExecutions"),
            "role": v["Role"],
            "environment": Nested({"variables": v["Environment"]["Variables"]}),
            "logging_config": Nested(
                {
                    "log_format": logging["LogFormat"],
                    "log_group": logging["LogGroup"],
                    "system_log_level": logging["SystemLogLevel"],
                }
            ),
            "depends_on": [Expression(f"aws_iam_role_policy.{role}")],
        },
    )
    if "RecursiveLoop" in v:
        name = Expression(f"aws_lambda_function.{label}.function_name")
        recursion = {"function_name": name, "recursive_loop": v["RecursiveLoop"]}
        yield "aws_lambda_function_recursion_config", label, recursion


def _invocation(module: Module, label: str, given: dict[str, Any]) -> Made:
    yield (
        "aws_lambda_function_event_invoke_config",
        label,
        {
            "function_name": module.value(given["FunctionName"]),
            "maximum_event_age_in_seconds": given["MaximumEventAgeInSeconds"],
            "maximum_retry_attempts": given["MaximumRetryAttempts"],
        },
    )


def _event_source(module: Module, label: str, given: dict[str, Any]) -> Made:
    scaling = module.value(given["ScalingConfig"]["MaximumConcurrency"])
    yield (
        "aws_lambda_event_source_mapping",
        label,
        {
            "event_source_arn": module.value(given["EventSourceArn"]),
            "function_name": module.value(given["FunctionName"]),
            "batch_size": given["BatchSize"],
            "function_response_types": given["FunctionResponseTypes"],
            "scaling_config": Nested({"maximum_concurrency": scaling}),
        },
    )


def _rule(module: Module, label: str, given: dict[str, Any]) -> Made:
    yield (
        "aws_cloudwatch_event_rule",
        label,
        {
            "description": module.value(given["Description"]),
            "schedule_expression": given["ScheduleExpression"],
            "state": given["State"],
        },
    )
    [target] = given["Targets"]
    retries = target["RetryPolicy"]
    yield (
        "aws_cloudwatch_event_target",
        label,
        {
            "rule": Expression(f"aws_cloudwatch_event_rule.{label}.name"),
            "arn": module.value(target["Arn"]),
            "retry_policy": Nested(
                {
                    "maximum_event_age_in_seconds": retries["MaximumEventAgeInSeconds"],
                    "maximum_retry_attempts": retries["MaximumRetryAttempts"],
                }
            ),
        },
    )


def _permission(module: Module, label: str, given: dict[str, Any]) -> Made:
    attributes = {snake(key): module.value(value) for key, value in given.items()}
    yield "aws_lambda_permission", label, attributes


def _alarm(module: Module, label: str, given: dict[str, Any]) -> Made:
    v = {key: module.value(value) for key, value in given.items()}
    name = label.removeprefix("store_").removeprefix("alarms_").replace("_", "-")
    yield (
        "aws_cloudwatch_metric_alarm",
        label,
        {
            "alarm_name": Expression(f'"${{var.endpoint}}-delay: {name}"'),
            "alarm_description": v["AlarmDescription"],
            "namespace": v["Namespace"],
            "metric_name": v["MetricName"],
            "dimensions": {each["Name"]: each["Value"] for each in v["Dimensions"]},
            "statistic": v["Statistic"],
            "period": v["Period"],
            "evaluation_periods": v["EvaluationPeriods"],
            "comparison_operator": v["ComparisonOperator"],
            "threshold": v["Threshold"],
            "treat_missing_data": v["TreatMissingData"],
            "alarm_actions": v["AlarmActions"],
        },
    )


def _dashboard(module: Module, label: str, given: dict[str, Any]) -> Made:
    name, body = (module.value(given[key]) for key in ("DashboardName", "DashboardBody"))
    yield "aws_cloudwatch_dashboard", label, {"dashboard_name": name, "dashboard_body": body}


_MAKERS: Final = {
    "AWS::SQS::Queue": _queue,
    "AWS::SQS::QueuePolicy": _queue_policy,
    "AWS::DynamoDB::Table": _table,
    "AWS::Logs::LogGroup": _log_group,
    "AWS::IAM::Role": _role,
    "AWS::IAM::Policy": _role_policy,
    "AWS::Lambda::Function": _function,
    "AWS::Lambda::EventInvokeConfig": _invocation,
    "AWS::Lambda::EventSourceMapping": _event_source,
    "AWS::Lambda::Permission": _permission,
    "AWS::Events::Rule": _rule,
    "AWS::CloudWatch::Alarm": _alarm,
    "AWS::CloudWatch::Dashboard": _dashboard,
}

_DATA: Final = tuple(
    f'data "{kind}" "this" {{}}' for kind in ("aws_caller_identity", "aws_partition", "aws_region")
)
_VERSIONS: Final = """\
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.75"
    }
  }
}
"""


def main() -> None:
    """Write every module into ``terraform/``."""
    for name in STORES:
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for file, text in Module(template(name)).files().items():
            (FOLDER / name / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
