"""What the CDK context (``-c key=value``) asks to be deployed."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs

from sqsdelay.cdk.functions import MAX_MEMORY_MB, MIN_MEMORY_MB
from sqsdelay.cdk.ledger import IN_S3
from sqsdelay.cdk.removal_guard import NONE
from sqsdelay.cdk.stores import DYNAMODB
from sqsdelay.cdk.unrestricted_delay import STORES, STORES_TO_USE
from sqsdelay.core.delay import checked_max_delay, delay_ms
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.core.limits import MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.readable import parse_delay
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.stores.dynamodb.dynamodb_store import (
    DEFAULT_SHARDS,
    MAX_SHARDS,
    STANDARD,
    TABLE_CLASSES,
)

_RETENTION: Final = (
    "1 ONE_DAY, 3 THREE_DAYS, 7 ONE_WEEK, 14 TWO_WEEKS, 30 ONE_MONTH, 90 THREE_MONTHS, 180 SIX_MONTHS, "
    "365 ONE_YEAR, 731 TWO_YEARS, 1827 FIVE_YEARS, 3653 TEN_YEARS"
)
RETENTION: Final = {
    days: logs.RetentionDays[name] for days, name in map(str.split, _RETENTION.split(", "))
}
"""Days that CloudWatch Logs takes, the usual ones of them."""

Parser = Callable[[Any], Any]
"""Gives a key's value as a setting; raises ValueError for what cannot be used."""


def _whole(least: int, most: int) -> Parser:
    def parsed(value: Any) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError
        return int(text)

    return parsed


def _formed(pattern: str) -> Parser:
    def parsed(value: Any) -> str:
        if re.fullmatch(pattern, str(value), re.ASCII) is None:
            raise ValueError
        return str(value)

    return parsed


def _one_of(known: Mapping[Any, Any]) -> Parser:
    """The command line gives text, cdk.json booleans and numbers."""

    def parsed(value: Any) -> Any:
        found = value if isinstance(value, bool) else str(value)
        if found not in known:
            raise ValueError
        return known[found]

    return parsed


_ID: Final = "[0-9a-f]{8,17}"


def _ids(kind: str) -> Parser:
    return lambda value: tuple(_formed(f"{kind}-{_ID}(,{kind}-{_ID})*")(value).split(","))


_SWITCH: Final = {True: True, "true": True, False: False, "false": False, NONE: False}

_SETTINGS: Final[Mapping[str, tuple[Parser, str]]] = {
    "hopSeconds": (
        _whole(1, MAX_MESSAGE_TIMER_SECONDS),
        f"; use whole seconds, 1 to {MAX_MESSAGE_TIMER_SECONDS}",
    ),
    "alarmTopicArn": (
        _formed(r"arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]+"),
        " is not an SNS topic ARN; write arn:aws:sns:REGION:ACCOUNT:NAME",
    ),
    "removalPolicy": (
        _one_of({"retain": RemovalPolicy.RETAIN, "destroy": RemovalPolicy.DESTROY}),
        "; use retain or destroy",
    ),
    "store": (
        _one_of({store: store for store in (*STORES, NONE)}),
        f"; use {STORES_TO_USE}, leave it out for no store, or use {NONE} to give one up",
    ),
    "storeShards": (
        _whole(1, MAX_SHARDS),
        f"; use 1 to {MAX_SHARDS} with store={DYNAMODB}, or leave it out for {DEFAULT_SHARDS}",
    ),
    "storeClass": (
        _one_of({each: each for each in TABLE_CLASSES}),
        f"; use {' or '.join(TABLE_CLASSES)} with store={DYNAMODB}, or leave it out for {STANDARD}",
    ),
    "largeBodies": (
        _one_of(_SWITCH),
        f"; use true, leave it out for bodies up to 1 MiB, or use {NONE} to give up a bucket",
    ),
    "ledger": (
        _one_of({True: True, "true": True, False: False, NONE: False, IN_S3: IN_S3}),
        f"; use {IN_S3} for a bucket, true for the functions' logs, leave it out for no events, or use "
        f"{NONE} to give up a bucket",
    ),
    "ledgerBucket": (
        _formed(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
        f"; use the name of a bucket in the stack's region with ledger={IN_S3}, or leave it out for a new "
        "bucket",
    ),
    "kmsKeyArn": (
        _formed(r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+"),
        "; write arn:aws:kms:REGION:ACCOUNT:key/ID",
    ),
    "permissionsBoundaryArn": (
        _formed(r"arn:[a-z-]+:iam::(\d{12}|aws):policy/[\w+=,.@/-]+"),
        "; write arn:aws:iam::ACCOUNT:policy/NAME",
    ),
    "vpcId": (_formed(f"vpc-{_ID}"), "; write vpc-ID"),
    "subnetIds": (_ids("subnet"), "; write subnet-ID,subnet-ID"),
    "securityGroupIds": (_ids("sg"), "; write sg-ID"),
    "memoryMb": (
        _whole(MIN_MEMORY_MB, MAX_MEMORY_MB),
        f"; use whole MB, {MIN_MEMORY_MB} to {MAX_MEMORY_MB}",
    ),
    "logRetentionDays": (_one_of(RETENTION), f"; use one of {', '.join(RETENTION)}"),
    "tracing": (
        _one_of({True: True, "true": True}),
        "; use true, or leave it out for no traces of the functions",
    ),
}
"""How a key's value is read, and what is told of one that cannot be used."""

_ONLY_WITH: Final = {
    "storeShards": ("store", DYNAMODB),
    "storeClass": ("store", DYNAMODB),
    "ledgerBucket": ("ledger", IN_S3),
}

KEYS: Final = ("endpoint", "queueArn", "maxDelay", *_SETTINGS)
"""All that `Deployment.read` asks for."""

_OF_THE_CDK: Final = ("cli-telemetry", "acknowledged-issue-numbers")
"""Context keys of the CDK's own. Its others hold a ':' or a '/': feature flags
(``@aws-cdk/core:…``), settings (``aws:cdk:…``), what it looked up (``availability-zones:…``)."""


def _setting(get: Callable[[str], Any], key: str) -> Any:
    value = get(key)
    parsed, told = _SETTINGS[key]
    other, needed = _ONLY_WITH.get(key, (None, None))
    try:
        if other is not None and get(other) != needed:
            raise ValueError
        return parsed(value)
    except ValueError:
        raise ConfigurationError(f"context {key}={value!r}{told}") from None


_NETWORK: Final = ("vpcId", "subnetIds", "securityGroupIds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """The endpoints to deploy and the settings they share, by name, as far as they are given: those of
    `UnrestrictedDelay`, and what the account wants of keys, network, memory, logs and roles. ``queue_arn``
    names an existing destination queue; None creates one per endpoint."""

    endpoints: tuple[Endpoint, ...] = ()
    queue_arn: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(
        cls, get: Callable[[str], Any], *, account: str | None = None, region: str | None = None
    ) -> Deployment:
        """The deployment a context asks for; no endpoint is none to deploy, and no error. Raises
        ConfigurationError, InvalidEndpoint: a value that cannot be used, and what can. ``get``: a context
        value by its key, None where it is not given. ``account``, ``region``: where the stacks go, as far as
        it is known."""
        queue_arn = get("queueArn")
        endpoints = _endpoints(get("endpoint"))
        if queue_arn is not None:
            endpoints = _existing(str(queue_arn), endpoints, account=account, region=region)
        given = {key: _setting(get, key) for key in _SETTINGS if get(key) is not None}
        network = [key for key in _NETWORK if key in given]
        if network and len(network) < len(_NETWORK):
            raise ConfigurationError(
                f"context {' and '.join(network)} alone; a network takes vpcId, subnetIds and "
                "securityGroupIds, all three, for nothing is looked up in the account"
            )
        # ``hop_seconds`` is what ``hopSeconds`` sets.
        settings = {re.sub("([A-Z])", r"_\1", k).lower(): value for k, value in given.items()}
        if (longest := get("maxDelay")) is not None:
            try:
                seconds = -(-delay_ms(parse_delay(str(longest))) // 1000)
                settings["max_delay_seconds"] = checked_max_delay(seconds)
            except SqsDelayError as error:
                raise ConfigurationError(f"context maxDelay={longest!r}: {error}") from error
        return cls(endpoints=endpoints, queue_arn=queue_arn, settings=settings)


def refuse_unknown_keys(given: Iterable[str]) -> None:
    """Refuse a key nobody asks for: a misspelt one would be a setting that was left out. Raises
    ConfigurationError: with the right name where there is a near one. ``given``: all context keys, from
    wherever: ``-c``, cdk.json, cdk.context.json, ~/.cdk.json."""
    for key in given:
        if key in KEYS or key in _OF_THE_CDK or ":" in key or "/" in key:
            continue
        plain = {re.sub(r"[-_ ]", "", known).lower(): known for known in KEYS}
        near = difflib.get_close_matches(re.sub(r"[-_ ]", "", key).lower(), plain, n=1)
        raise ConfigurationError(
            f"context key {key!r} is unknown; "
            + (f"did you mean {plain[near[0]]!r}? " if near else "")
            + f"the keys are {', '.join(KEYS)}"
        )


def _endpoints(value: Any) -> tuple[Endpoint, ...]:
    names = [name.strip() for name in str(value or "").split(",") if name.strip()]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigurationError(f"context endpoint lists {twice[0]!r} twice; list it once")
    for name in names:
        if ":" in name:
            raise ConfigurationError(
                f"context endpoint={name!r} is not a queue name; for an existing queue use "
                "-c queueArn=ARN"
            )
    endpoints = tuple(Endpoint.parse(name) for name in names)
    # ``orders`` and ``orders.fifo`` would have one delay queue; ``orders-due`` is the latter's, and
    # ``orders-parking`` may be the former's one day.
    owners: dict[str, str] = {}
    for endpoint in endpoints:
        for queue in (*endpoint.queues, endpoint.parking_queue):
            other = owners.setdefault(queue.name, endpoint.name)
            if other != endpoint.name:
                raise ConfigurationError(
                    f"context endpoint names {other!r} and {endpoint.name!r}, which would share the "
                    f"queue {queue.name!r}; rename one of them"
                )
    return endpoints


def _existing(
    queue_arn: str, endpoints: tuple[Endpoint, ...], *, account: str | None, region: str | None
) -> tuple[Endpoint, ...]:
    """The one endpoint of an existing queue, which must be where its stack goes."""
    if not queue_arn.startswith("arn:"):
        raise ConfigurationError(
            f"context queueArn={queue_arn!r} is not an ARN; write arn:aws:sqs:REGION:ACCOUNT:NAME"
        )
    existing = Endpoint.parse(queue_arn)
    if endpoints and [endpoint.name for endpoint in endpoints] != [existing.name]:
        raise ConfigurationError(
            f"context queueArn names the queue {existing.name!r}, context endpoint "
            f"{', '.join(endpoint.name for endpoint in endpoints)!r}; deploy one endpoint at a "
            "time with queueArn, and leave endpoint out or give it the queue's name"
        )
    for kind, known, asked in (
        ("account", account, existing.queue.account_id),
        ("region", region, existing.queue.region),
    ):
        if known is not None and known != asked:
            raise ConfigurationError(
                f"context queueArn is in {kind} {asked}, the stack goes to {known}; "
                f"deploy with credentials and region of the queue's {kind}"
            )
    return (existing,)
