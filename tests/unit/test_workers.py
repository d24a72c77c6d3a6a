"""Tests that share a JVM, and tests of one file, run in one worker."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.mark.slow
def test_xdist_groups_by_our_marks(pytester: pytest.Pytester) -> None:
    """The installed pytest and xdist keep a group in one worker; pytest 9.2 with xdist 3.8 does not."""
    pytester.makeconftest(
        "import pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items: item.add_marker(pytest.mark.xdist_group('jvm'))\n"
    )
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_x(n): pass\n")
    result = pytester.runpytest_subprocess("-n2", "--dist=loadgroup", "-v", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=8)
    workers = {line.split("]")[0] for line in result.outlines if line.startswith("[gw")}
    assert len(workers) == 1, workers
