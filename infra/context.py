"""What the CDK context (``-c key=value``) asks to be deployed."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from aws_cdk import RemovalPolicy

from infra.hosting import KEYS as HOSTING_KEYS
from infra.hosting import Hosting
from sqsdelay.cdk.ledger import IN_S3
from sqsdelay.cdk.removal_guard import NONE
from sqsdelay.cdk.stores import DYNAMODB
from sqsdelay.cdk.unrestricted_delay import STORES, STORES_TO_USE
from sqsdelay.core.delay import checked_max_delay, delay_ms, parse_delay
from sqsdelay.core.endpoint import Endpoint
from sqsdelay.errors import ConfigurationError, SqsDelayError
from sqsdelay.limits import (
    DEFAULT_HOP_SECONDS,
    DEFAULT_MAX_DELAY_SECONDS,
    MAX_MESSAGE_TIMER_SECONDS,
)
from sqsdelay.stores.dynamodb.dynamodb_store import (
    DEFAULT_SHARDS,
    MAX_SHARDS,
    STANDARD,
    TABLE_CLASSES,
)

_TOPIC_ARN: Final = re.compile(r"arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]+", re.ASCII)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_REMOVAL_POLICIES: Final = {"retain": RemovalPolicy.RETAIN, "destroy": RemovalPolicy.DESTROY}

KEYS: Final = (
    "endpoint",
    "queueArn",
    "hopSeconds",
    "maxDelay",
    "alarmTopicArn",
    "removalPolicy",
    "store",
    "storeShards",
    "storeClass",
    "largeBodies",
    "ledger",
    "ledgerBucket",
    *HOSTING_KEYS,
)
"""All that `Deployment.read` asks for."""

_OF_THE_CDK: Final = ("cli-telemetry", "acknowledged-issue-numbers")
"""Context keys of the CDK's own. Its others hold a ':' or a '/': feature flags
(``@aws-cdk/core:…``), settings (``aws:cdk:…``), what it looked up (``availability-zones:…``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """The endpoints to deploy and the settings they share.

    ``queue_arn`` names an existing destination queue; None creates one per endpoint.
    ``removal_policy`` says what becomes of queues, table and bucket when their stack is removed.
    ``max_delay_seconds`` is the farthest that messages may be due.
    ``store`` is the kind of store to add to each endpoint; None adds none, and ``none`` lets go of one.
    ``store_shards`` and ``store_class`` are that store's shards and its table's class.
    ``large_bodies`` adds a bucket for large bodies to each endpoint; False lets go of one.
    ``ledger`` has the functions record what happens to each message, in their logs or in S3, there in
    ``ledger_bucket`` if it is given; False lets go of a bucket.
    ``hosting`` says of keys, network, memory, logs and roles what the account wants.
    """

    endpoints: tuple[Endpoint, ...] = ()
    queue_arn: str | None = None
    hop_seconds: int = DEFAULT_HOP_SECONDS
    max_delay_seconds: int = DEFAULT_MAX_DELAY_SECONDS
    alarm_topic_arn: str | None = None
    removal_policy: RemovalPolicy = RemovalPolicy.RETAIN
    store: str | None = None
    store_shards: int = DEFAULT_SHARDS
    store_class: str = STANDARD
    large_bodies: bool | None = None
    ledger: bool | str | None = None
    ledger_bucket: str | None = None
    hosting: Hosting = field(default_factory=Hosting)

    @classmethod
    def read(
        cls, get: Callable[[str], Any], *, account: str | None = None, region: str | None = None
    ) -> Deployment:
        """The deployment a context asks for; no endpoint is none to deploy, and no error.

        Args:
            get: a context value by its key, None where it is not given.
            account, region: where the stacks go, as far as it is known.

        Raises:
            ConfigurationError, InvalidEndpoint: a value that cannot be used, and what can.
        """
        queue_arn = get("queueArn")
        endpoints = _endpoints(get("endpoint"))
        if queue_arn is not None:
            endpoints = _existing(str(queue_arn), endpoints, account=account, region=region)
        return cls(
            endpoints=endpoints,
            queue_arn=queue_arn,
            hop_seconds=_hop_seconds(get("hopSeconds")),
            max_delay_seconds=_max_delay(get("maxDelay")),
            alarm_topic_arn=_topic(get("alarmTopicArn")),
            removal_policy=_removal_policy(get("removalPolicy")),
            store=_store(get("store")),
            store_shards=_store_shards(get("storeShards"), get("store")),
            store_class=_store_class(get("storeClass"), get("store")),
            large_bodies=_large_bodies(get("largeBodies")),
            ledger=_ledger(get("ledger")),
            ledger_bucket=_ledger_bucket(get("ledgerBucket"), get("ledger")),
            hosting=Hosting.read(get),
        )


def refuse_unknown_keys(given: Iterable[str]) -> None:
    """Refuse a key nobody asks for: a misspelt one would be a setting that was left out.

    Args:
        given: all context keys, from wherever: ``-c``, cdk.json, cdk.context.json, ~/.cdk.json.

    Raises:
        ConfigurationError: with the right name where there is a near one.
    """
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
    _refuse_shared_queues(endpoints)
    return endpoints


def _refuse_shared_queues(endpoints: tuple[Endpoint, ...]) -> None:
    """``orders`` and ``orders.fifo`` would have one delay queue; ``orders-due`` is the latter's, and
    ``orders-parking`` may be the former's one day."""
    owners: dict[str, str] = {}
    for endpoint in endpoints:
        for queue in (*endpoint.queues, endpoint.parking_queue):
            other = owners.setdefault(queue.name, endpoint.name)
            if other != endpoint.name:
                raise ConfigurationError(
                    f"context endpoint names {other!r} and {endpoint.name!r}, which would share the "
                    f"queue {queue.name!r}; rename one of them"
                )


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


def _hop_seconds(value: Any) -> int:
    if value is None:
        return DEFAULT_HOP_SECONDS
    text = str(value)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_MESSAGE_TIMER_SECONDS):
        raise ConfigurationError(
            f"context hopSeconds={text!r}; use whole seconds, 1 to {MAX_MESSAGE_TIMER_SECONDS}"
        )
    return int(text)


def _max_delay(value: Any) -> int:
    if value is None:
        return DEFAULT_MAX_DELAY_SECONDS
    try:
        return checked_max_delay(-(-delay_ms(parse_delay(str(value))) // 1000))
    except SqsDelayError as error:
        raise ConfigurationError(f"context maxDelay={value!r}: {error}") from error


def _topic(value: Any) -> str | None:
    if value is None:
        return None
    if _TOPIC_ARN.fullmatch(str(value)):
        return str(value)
    raise ConfigurationError(
        f"context alarmTopicArn={value!r} is not an SNS topic ARN; "
        "write arn:aws:sns:REGION:ACCOUNT:NAME"
    )


def _removal_policy(value: Any) -> RemovalPolicy:
    if value is None:
        return RemovalPolicy.RETAIN
    if str(value) not in _REMOVAL_POLICIES:
        raise ConfigurationError(
            f"context removalPolicy={value!r}; use {' or '.join(_REMOVAL_POLICIES)}"
        )
    return _REMOVAL_POLICIES[str(value)]


def _store(value: Any) -> str | None:
    if value is None:
        return None
    if str(value) not in (*STORES, NONE):
        raise ConfigurationError(
            f"context store={value!r}; use {STORES_TO_USE}, leave it out for no store, or use "
            f"{NONE} to give one up"
        )
    return str(value)


def _store_shards(value: Any, store: Any) -> int:
    if value is None:
        return DEFAULT_SHARDS
    text = str(value)
    if store != DYNAMODB or not (
        text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_SHARDS
    ):
        raise ConfigurationError(
            f"context storeShards={text!r}; use 1 to {MAX_SHARDS} with store={DYNAMODB}, or leave it out for "
            f"{DEFAULT_SHARDS}"
        )
    return int(text)


def _store_class(value: Any, store: Any) -> str:
    if value is None:
        return STANDARD
    if store != DYNAMODB or str(value) not in TABLE_CLASSES:
        raise ConfigurationError(
            f"context storeClass={value!r}; use {' or '.join(TABLE_CLASSES)} with store={DYNAMODB}, or leave "
            f"it out for {STANDARD}"
        )
    return str(value)


def _large_bodies(value: Any) -> bool | None:
    if value is None:
        return None
    # The command line gives text, cdk.json a boolean.
    known = {True: True, "true": True, False: False, "false": False, NONE: False}
    if not isinstance(value, str | bool) or value not in known:
        raise ConfigurationError(
            f"context largeBodies={value!r}; use true, leave it out for bodies up to 1 MiB, or use "
            f"{NONE} to give up a bucket"
        )
    return known[value]


def _ledger(value: Any) -> bool | str | None:
    if value is None:
        return None
    known: dict[Any, bool | str] = {
        True: True,
        "true": True,
        False: False,
        NONE: False,
        IN_S3: IN_S3,
    }
    if not isinstance(value, str | bool) or value not in known:
        raise ConfigurationError(
            f"context ledger={value!r}; use {IN_S3} for a bucket, true for the functions' logs, leave it out "
            f"for no events, or use {NONE} to give up a bucket"
        )
    return known[value]


def _ledger_bucket(value: Any, ledger: Any) -> str | None:
    if value is None:
        return None
    if ledger != IN_S3 or _BUCKET.fullmatch(str(value)) is None:
        raise ConfigurationError(
            f"context ledgerBucket={value!r}; use the name of a bucket in the stack's region with "
            f"ledger={IN_S3}, or leave it out for a new bucket"
        )
    return str(value)
