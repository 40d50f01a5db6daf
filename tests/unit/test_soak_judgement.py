"""The judgement of a soak run: what counts as growth, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.soak import MAX_GROWN_BYTES, MAX_GROWN_FILES, Sample, Verdict, judged

MIB = 2**20


def verdict(
    rss: Callable[[int], float] = lambda n: 50 * MIB,
    files: Callable[[int], int] = lambda n: 8,
    messages: Callable[[int], int] = lambda n: 100 * n,
) -> Verdict:
    """Of 120 samples, one a second."""
    return judged(
        [
            Sample(at=n, rss=round(rss(n)), files=files(n), sockets=2, messages=messages(n))
            for n in range(120)
        ]
    )


def test_a_flat_worker_is_well() -> None:
    """Nothing grows, messages move: no problem, and the figures are those after the warm-up."""
    seen = verdict()
    assert seen.problems == ()
    assert (seen.grown_bytes, seen.grown_files) == (0, 0)
    assert (seen.seconds, seen.messages) == (79, 7900)


def test_growth_in_the_warm_up_and_single_peaks_do_not_count() -> None:
    """Imports and first connections take memory once; a large batch takes some for a moment."""
    assert verdict(rss=lambda n: 50 * MIB + min(n, 30) * MIB).problems == ()
    assert verdict(rss=lambda n: (90 if n % 7 == 0 else 50) * MIB).problems == ()


@pytest.mark.parametrize(("share", "well"), [(0.9, True), (1.1, False)])
def test_steady_growth_is_found_in_full(share: float, well: bool) -> None:
    """A tenth above what is allowed after the warm-up is a problem, a tenth below is not."""
    seen = verdict(rss=lambda n: 50 * MIB + share * MAX_GROWN_BYTES * n / 80)
    assert seen.grown_bytes == pytest.approx(share * MAX_GROWN_BYTES, rel=0.05)
    assert (seen.problems == ()) is well


def test_leaked_sockets_are_found() -> None:
    """One open file more every ten seconds, with flat memory, is a problem of its own."""
    seen = verdict(files=lambda n: 8 + n // 10)
    assert seen.grown_files > MAX_GROWN_FILES
    assert [problem.split(" grew")[0] for problem in seen.problems] == ["open files"]


def test_a_worker_that_stands_still_is_no_success() -> None:
    """Flat memory proves nothing when no message moves any more."""
    seen = verdict(messages=lambda n: min(n, 60) * 100)
    assert seen.problems == ("no message was moved in the last quarter",)


def test_too_few_samples_are_refused() -> None:
    """A run too short to judge says so."""
    with pytest.raises(ValueError, match=r"0 samples; take at least 12"):
        judged([])
