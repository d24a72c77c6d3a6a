"""What a listing of a store says about journals, and what the user has to specify."""

from __future__ import annotations

import pytest

from gazette_spark._planning.store_layout import Layout, StoreFile, StoreSelection, layout_of
from gazette_spark._planning.stores import MAX_ROOTS, roots_of
from gazette_spark.errors import OptionError

SHA = "0123456789abcdef0123456789abcdef01234567"


def name(begin: int, end: int, extension: str = ".gz") -> str:
    return f"{begin:016x}-{end:016x}-{SHA}{extension}"


def layout(*paths: str, names: tuple[str, ...] = (), levels: int | None = None) -> Layout:
    wanted = StoreSelection(names, "" if names else "log/", levels)
    return layout_of([StoreFile(path, 9, 60) for path in paths], wanted)


def spans(found: Layout) -> dict[str, list[tuple[int, int]]]:
    return {
        journal: [(each.begin, each.end) for each in found.journals[journal]] for journal in found.journals
    }


def test_a_directory_with_fragments_is_a_journal() -> None:
    paths = [f"log/b/{name(5, 9)}", f"log/a/deep/{name(0, 9)}", f"log/b/{name(0, 5)}", f"logs/{name(0, 9)}"]
    assert spans(layout(*paths)) == {"log/a/deep": [(0, 9)], "log/b": [(0, 5), (5, 9)]}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("log/a/readme.txt", id="another_file"),
        pytest.param(f"log/a/{name(9, 5)}", id="end_before_begin"),
        pytest.param(f"log/a/{name(0, 9, '.bz2')}", id="unknown_codec"),
        pytest.param(f"log/a/{name(0, 9)[1:]}x", id="extension_with_more"),
        pytest.param(f"log/a/{'g' * 16}-{name(0, 9)[17:]}", id="no_hex"),
        pytest.param(f"log/a/{name(0, 1 << 63)}", id="past_the_largest_offset"),
        pytest.param(f"log/../a/{name(0, 9)}", id="dot_dot"),
    ],
)
def test_what_is_no_fragment_is_counted(path: str) -> None:
    found = layout(path, f"log/z/{name(0, 9)}")
    assert spans(found) == {"log/z": [(0, 9)]}
    assert found.skipped == (path,)


def test_what_is_not_whole_yet_is_not_looked_at() -> None:
    """Brokers rename a file when it is complete. An empty fragment has no bytes."""
    found = layout(f"log/a/.partial-{name(0, 9)}123", f"log/a/{name(7, 7)}")
    assert (spans(found), found.skipped) == ({}, ())


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        pytest.param([f"log/a/date=1/{name(0, 9)}"], "in a directory 'date=1'", id="assignment"),
        pytest.param(
            [f"log/a/{name(0, 9)}", f"log/a/b/{name(0, 9)}"], "below the journal 'log/a'", id="nested"
        ),
        pytest.param(
            [f"log/a/mon/{name(0, 9)}", f"log/a/tue/{name(9, 12)}"],
            "just after the last one in 'log/a/mon'",
            id="chained",
        ),
    ],
)
def test_what_may_be_a_postfix_has_to_be_decided(paths: list[str], problem: str) -> None:
    """If a possible postfix were guessed, rows could name a journal that does not exist."""
    with pytest.raises(OptionError, match=f"'fragmentPostfixLevels': got nothing.*{problem}"):
        layout(*paths)
    assert set(spans(layout(*paths, levels=0))) == {path.rpartition("/")[0] for path in paths}


def test_a_postfix_is_left_off() -> None:
    paths = [f"log/a/2026/01/{name(0, 9)}", f"log/a/2026/02/{name(9, 12)}", f"log/b/2026/01/{name(0, 4)}"]
    assert spans(layout(*paths, levels=2)) == {"log/a": [(0, 9), (9, 12)], "log/b": [(0, 4)]}


def test_a_fragment_that_is_not_deep_enough_is_no_silent_loss() -> None:
    """The path template may be younger than a journal's first fragments, so journals must be named."""
    paths = [f"log/a/{name(0, 9)}", f"log/a/2026/{name(9, 12)}"]
    with pytest.raises(OptionError, match=r"got 2, but the fragment 'log/a/0.* is not so deep under 'log/'"):
        layout(*paths, levels=2)
    assert spans(layout(*paths, names=("log/a",), levels=2)) == {"log/a": [(0, 9), (9, 12)]}
    with pytest.raises(OptionError, match="not so deep"):
        layout(f"log/{name(0, 9)}", levels=1)
    assert spans(layout(f"log/{name(0, 9)}")) == {}


def test_a_named_journal_has_what_lies_below_it() -> None:
    paths = [f"log/a/{name(0, 9)}", f"log/a/1/{name(9, 12)}", f"log/a/b/{name(0, 4)}"]
    with pytest.raises(OptionError, match=r"'fragmentPostfixLevels': got nothing.*below the journal 'log/a'"):
        layout(*paths, names=("log/a",))
    assert spans(layout(*paths, names=("log/a",), levels=0)) == {"log/a": [(0, 9)]}
    both = layout(*paths, names=("log/a", "log/a/b"), levels=1)
    assert spans(both) == {"log/a": [(0, 9), (9, 12)], "log/a/b": [(0, 4)]}


def test_a_query_lists_once() -> None:
    assert roots_of(StoreSelection(prefix="log/deep/")) == ["log/deep"]
    assert roots_of(StoreSelection(("log/b", "log/a", "log/a/c"))) == ["log/a", "log/b"]
    many = tuple(f"log/deep/{n}" for n in range(MAX_ROOTS + 1))
    assert roots_of(StoreSelection(many)) == ["log/deep"]
    assert roots_of(StoreSelection((*many, "other/journal"))) == [""]
