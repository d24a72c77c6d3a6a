"""A local session takes Delta's jars from the class path where they are on it."""

from __future__ import annotations

import pytest

from gazette_spark.session import delta_is_on_class_path


@pytest.mark.parametrize(
    ("jars", "found"),
    [
        pytest.param({}, False, id="no class path"),
        pytest.param({"SPARK_DIST_CLASSPATH": "/jars/other.jar"}, False, id="other jars"),
        pytest.param(
            {"SPARK_DIST_CLASSPATH": "/jars/other.jar:/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar"},
            True,
            id="a jar of Delta",
        ),
    ],
)
def test_the_class_path_says_where_delta_is(jars: dict[str, str], found: bool) -> None:
    """A class path counts only if it has a jar of delta-spark."""
    assert delta_is_on_class_path(jars) is found
