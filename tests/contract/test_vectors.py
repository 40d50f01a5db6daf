"""The sender's contract is what Python's sender does; senders in other languages are held to the file."""

from __future__ import annotations

from tests.contract.vectors import contract, read


def test_the_vectors_are_what_the_sender_does() -> None:
    """A change of either shows here; ``python -m tests.contract.vectors`` writes the answers down."""
    assert contract() == read()


def test_each_vector_has_a_name_of_its_own_and_an_answer() -> None:
    """No vector is left without what it is for, and each error says something."""
    vectors = read()["vectors"]
    assert len({vector["name"] for vector in vectors}) == len(vectors) > 60
    for vector in vectors:
        assert ("sends" in vector) != ("error" in vector), vector["name"]
        assert ("error" in vector) == ("says" in vector), vector["name"]


def test_every_route_and_error_of_a_send_has_a_vector() -> None:
    """But for the errors of a network, and those of stores and buckets."""
    vectors = read()["vectors"]
    assert {vector["sends"]["route"] for vector in vectors if "sends" in vector} == {
        "direct",
        "delay-queue",
        "due-queue",
    }
    assert {vector["error"] for vector in vectors if "error" in vector} == {
        "ConfigurationError",
        "DelayQueueMissing",
        "InvalidDelay",
        "InvalidEndpoint",
        "InvalidMessage",
        "MessageTooLarge",
        "QueueMissing",
        "TooManyAttributes",
    }
