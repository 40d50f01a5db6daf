"""docs/senders-contract.md's snippets for other languages, run with what Debian and PyPI have of them.

The one for the JavaScript SDK is run beside the npm package, in `test_typescript`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sqsdelay.core.limits import DELAY_QUEUE_SUFFIX, MAX_MESSAGE_TIMER_SECONDS
from sqsdelay.core.message import DELAY_SECONDS, MESSAGE_ID
from sqsdelay.testing import LocalAws
from tests.acceptance.contract_site import Site, block, run, was_relayed, with_short_hops
from tests.services import packages

DELAY = 3

PHP_SENDS = f"""<?php
require 'snippet.php';
$sqs = new AsyncAws\\Sqs\\SqsClient(['endpoint' => getenv('AWS_ENDPOINT_URL'), 'region' => 'us-east-1']);
sendDelayed($sqs, 'relayed', {DELAY}, 'order-7');
sendDelayed($sqs, 'now', 0);
"""

GO_SENDS = f"""package main

import (
	"context"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
)

func main() {{
	keys := func(context.Context) (aws.Credentials, error) {{
		return aws.Credentials{{AccessKeyID: "test", SecretAccessKey: "test"}}, nil
	}}
	client := sqs.New(sqs.Options{{
		Region:           "us-east-1",
		Credentials:      aws.CredentialsProviderFunc(keys),
		EndpointResolver: sqs.EndpointResolverFromURL(os.Getenv("AWS_ENDPOINT_URL")),
	}})
	send := func(body, id string, delay time.Duration) {{
		if err := sendDelayed(context.Background(), client, body, id, delay); err != nil {{
			panic(err)
		}}
	}}
	send("relayed", "order-7", {DELAY}*time.Second)
	send("now", "order-8", 0)
}}
"""


def php(folder: Path, env: dict[str, str]) -> None:
    (folder / "vendor").mkdir()
    (folder / "vendor" / "autoload.php").write_text(f"<?php require_once '{packages.php()}';\n")
    (folder / "snippet.php").write_text(with_short_hops(block("php").text))
    (folder / "send.php").write_text(PHP_SENDS)
    run("php", "send.php", cwd=folder, env=env)


def go(folder: Path, env: dict[str, str]) -> None:
    (folder / "main.go").write_text(GO_SENDS + "\n" + with_short_hops(block("go").text))
    run("go", "run", "main.go", cwd=folder, env=env | packages.go())


@pytest.fixture
def orders(local_aws: LocalAws) -> Iterator[Site]:
    """The page's endpoint."""
    with Site(local_aws, "orders") as site:
        yield site


@pytest.mark.parametrize("send", [php, pytest.param(go, marks=pytest.mark.nightly)])
def test_a_snippet_sends(
    orders: Site, tmp_path: Path, send: Callable[[Path, dict[str, str]], None]
) -> None:
    """What is due later hops and arrives under its sender's id, what is due now is there at once."""
    with orders.relayed():
        send(tmp_path, orders.aws.environment())
        arrived = orders.arrived(2)
    was_relayed(arrived["relayed"], message_id="order-7")
    assert MESSAGE_ID not in arrived["now"].get("MessageAttributes", {})


@pytest.mark.parametrize("by", ["curl --", pytest.param("aws sqs", marks=pytest.mark.nightly)])
def test_a_shell_sends(orders: Site, tmp_path: Path, by: str) -> None:
    """The page's lines, in a shell. Version 1 of the CLI needs to be told where its SQS is."""
    aws = ""
    if by == "aws sqs":
        aws = f'aws() {{ {packages.aws_cli()} --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }}\n'
    line = block("console", by).text
    assert "2592000" in line
    with orders.relayed():
        run(
            "bash",
            "-euc",
            aws + line.replace("2592000", str(DELAY)),
            cwd=tmp_path,
            env=orders.aws.environment(),
        )
        was_relayed(orders.arrived(1)['{"remind": 7}'], message_id="order-7")


@pytest.mark.parametrize("language", ["ruby", "java", "csharp"])
def test_a_snippet_that_is_not_run_names_what_is_on_the_wire(language: str) -> None:
    """A renamed attribute or queue, or another limit, would be found here."""
    code = block(language).text
    for word in (
        DELAY_SECONDS,
        MESSAGE_ID,
        f"orders{DELAY_QUEUE_SUFFIX}",
        f"> {MAX_MESSAGE_TIMER_SECONDS}",
    ):
        assert word in code, word
