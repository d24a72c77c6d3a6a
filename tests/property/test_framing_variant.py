"""Variants have the bytes that PySpark's own builder makes of the same JSON.

Names past U+FFFF are left out: PySpark's builder sorts them as Python does, the JVM's as Java does.
"""

from __future__ import annotations

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from gazette_spark._formats.json_reference import encode_variant
from tests.rig.examples import examples

# Python may print a double without an exponent and with many digits: a decimal in a variant.
numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False).map(json.dumps),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)
texts = st.one_of(
    st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=10),
    st.sampled_from(["x" * 63, "x" * 64, "é" * 32]),
)
values = st.recursive(
    st.one_of(numbers, texts.map(json.dumps), st.sampled_from(["null", "true", "false"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: f"[{','.join(parts)}]"),
        st.dictionaries(texts.map(json.dumps), inner, max_size=4).map(
            lambda members: "{" + ", ".join(f"{name}: {value}" for name, value in members.items()) + "}"
        ),
    ),
    max_leaves=12,
)


@given(values)
@example("[" + ",".join(map(str, range(300))) + "]")
@example("{" + ",".join(f'"key {at}":{at * 1001}' for at in range(300)) + "}")
@example("[" + ",".join([f'"{"x" * 300}"'] * 300) + "]")
@settings(max_examples=examples(100), deadline=None)
def test_bytes_are_those_of_pyspark(text: str) -> None:
    """Both parts equal PySpark's, for objects without repeated names."""
    expected = VariantVal.parseJson(text)
    assert encode_variant(text) == {"value": expected.value, "metadata": expected.metadata}
