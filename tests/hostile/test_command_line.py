"""Whatever is typed: an exit code, an error of one line, and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from sqsdelay.cli.waiting import EXIT_REQUESTED
from tests.hostile.strategies import lines, texts
from tests.services.processes import typed


def sometimes(examples: int) -> settings:
    """So many examples where the profile has 100: a command takes a while."""
    return settings(
        max_examples=-(-examples * settings().max_examples // 100),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the test's own, and no AWS but moto's, with an endpoint."""
    monkeypatch.chdir(tmp_path)
    with mock_aws():
        assert typed("endpoint", "create", "orders")[0] == 0
        assert typed("endpoint", "create", "tasks.fifo")[0] == 0
        assert typed("store", "create", "orders", "--store", "sqlite:///orders.db")[0] == 0
        yield


words = texts.filter(lambda text: "\0" not in text).map(
    # As a shell hands it over: what is no UTF-8 becomes a lone surrogate of this kind.
    lambda text: text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
)
endpoints = st.one_of(st.sampled_from(("orders", "tasks.fifo", "nobody")), words)
stores = st.one_of(
    st.just("sqlite:///orders.db"),
    words.map(lambda word: f"sqlite:///t-{word.replace('/', '-')}"),
    words.map(lambda word: f"postgresql:{word}"),
    words.map(lambda word: f"mysql://me:PASSWORD@{word}"),
)


def options(**given: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Some of these options, with values."""
    return st.fixed_dictionaries({}, optional=given).map(
        lambda chosen: [f"--{name.replace('_', '-')}={value}" for name, value in chosen.items()]
    )


commands = st.one_of(
    st.tuples(
        st.just(["send"]), endpoints.map(lambda name: [name]),
        options(body=words, delay=words, due_at=words, message_id=words, group=words, hop=words,
                concurrency=words),
    ),
    st.tuples(
        st.sampled_from((["send", "--store-only"], ["pending"])),
        endpoints.map(lambda name: [name]),
        options(store=stores, body=words, delay=words, due_at=words, message_id=words,
                limit=words),
    ),
    st.tuples(
        st.sampled_from((["cancel"], ["reschedule"])),
        st.tuples(endpoints, words).map(list),
        options(store=stores, delay=words, due_at=words),
    ),
    st.tuples(
        st.sampled_from((["cost"], ["endpoint", "check"], ["rabbitmq", "declare"], ["store", "migrate"])),
        st.lists(words, max_size=2),
        options(delay=words, messages=words, hop=words, prefix=words),
    ),
).map(lambda parts: [word for part in parts for word in part])  # fmt: skip


def check_told(code: int, err: str, arguments: Sequence[str]) -> None:
    assert code in (0, 1, 2, EXIT_REQUESTED), arguments
    assert "Traceback" not in err
    assert "PASSWORD" not in err
    if err.startswith("sqsdelay: "):
        assert code in (1, 2)
        assert err.count("\n") == 1, err


@sometimes(60)
@given(commands)
def test_any_arguments(arguments: list[str]) -> None:
    """0 done, 1 not done, 2 not understood, 3 requested; an error is one line."""
    code, _, err = typed(*arguments)
    check_told(code, err, arguments)


@sometimes(8)
@example("a:heart:b")
@given(st.text("[]/!#(){}*_~`'\"\\abc", min_size=1, max_size=20))
def test_ids_of_any_punctuation_are_shown_as_they_are(message_id: str) -> None:
    """An id is no markup: it is printed whole, so that it can be copied into `cancel`."""
    for command in (
        ["send", "orders"],
        ["send", "orders", "--store-only", "--store=sqlite:///orders.db"],
    ):
        code, out, err = typed(*command, "--body=x", "--delay=1000", f"--message-id={message_id}")
        assert (code, err) == (0, "")
        assert message_id in out
    code, out, _ = typed("pending", "orders", "--store=sqlite:///orders.db", "--limit=1000")
    assert code == 0
    assert message_id in out
    code, out, _ = typed("cancel", "orders", "--store=sqlite:///orders.db", "--", message_id)
    assert (code, out) == (0, f"{message_id}  cancelled\n")


@sometimes(12)
@given(st.lists(st.one_of(lines.map(json.dumps), words), max_size=5))
def test_any_file(rows: list[str]) -> None:
    """Each line that is no message is told with its number; the others are sent."""
    rows = [row.replace("\n", " ").replace("\r", " ") for row in rows]
    path = Path("messages.jsonl")
    path.write_bytes("\n".join(rows).encode("utf-8", "surrogateescape"))
    code, out, err = typed("send", "orders", "--file=messages.jsonl", "--json")
    check_told(code, err, rows)
    told = [json.loads(line) for line in out.splitlines()]
    assert [each["line"] for each in told] == sorted(each["line"] for each in told)
    assert len(told) == sum(bool(row.strip()) for row in rows)
    assert code == any(each["error"] for each in told)
    code, _, err = typed(
        "send", "orders", "--store-only", "--store=sqlite:///orders.db", "--file=messages.jsonl"
    )
    check_told(code, err, rows)
