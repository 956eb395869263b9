"""JSON from outside: what is rejected, with its place, and what is read as the standard parser reads it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.entries import strict
from suite.entries.strict import Unreadable

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-strict.LARGEST, strict.LARGEST)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\x1b", max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
@settings(max_examples=100)
def test_ordinary_json_is_read_as_the_standard_parser_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert strict.parse_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "text, says",
    [
        ('{"a": [1, NaN]}', "a.1: NaN is not JSON"),
        ('{"a": -Infinity}', "a: -Infinity is not JSON"),
        ('{"a": {"b": 1, "b": 2}}', "a: the key 'b' occurs more than once"),
        ('{"a": 1e999}', "a: 1e999 is too large"),
        ('{"a": 9223372036854775808}', "a: 9223372036854775808 is beyond"),
        ('{"a": ' + "9" * 5000 + "}", "is beyond"),
        ('{"a": "' + "x" * 100_001 + '"}', "a: has 100,001 characters"),
        ('{"a": "\\ud800"}', "a: contains half of a surrogate pair"),
        ('{"\\udfff": 1}', "the file: a key: contains half"),
        ("[" * 33 + "]" * 33, "line 1, column 33: nested more than 32 levels"),
        ("[" * 100_000, "nested more than 32 levels"),
        ('{"a": "' + "[" * 40 + '"', "line 1, column"),  # brackets inside a text do not nest
        ('{"a": 1,\n]', "line 2, column 1: not JSON"),
        ("", "line 1, column 1: not JSON"),
    ],
)
def test_json_that_readers_disagree_about_is_rejected_with_its_place(text: str, says: str) -> None:
    with pytest.raises(Unreadable) as error:
        strict.parse_json(text.encode())
    assert says in str(error.value)
    assert len(str(error.value)) < 1000  # a message never repeats megabytes


def test_bytes_that_are_no_text_are_rejected() -> None:
    with pytest.raises(Unreadable, match="byte 1: is not UTF-8"):
        strict.parse_json(b'"\xff"')


@given(st.binary(max_size=300) | st.text('[]{}",:\\0e1NaN ', max_size=200).map(str.encode))
@settings(max_examples=300)
def test_arbitrary_bytes_are_rejected_or_read_but_never_crash(content: bytes) -> None:
    try:
        value = strict.parse_json(content)
    except Unreadable:
        return
    assert json.loads(content) == value and not (isinstance(value, float) and not math.isfinite(value))


def test_large_files_directories_and_absent_files_are_rejected(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_bytes(b" " * 101)
    assert strict.read_bytes(large, 101) == b" " * 101
    for path, says in (
        (large, "larger than 100"),
        (tmp_path, "^is not a regular file"),
        (tmp_path / "no", "no such file"),
    ):
        with pytest.raises(Unreadable, match=says):
            strict.read_bytes(path, 100)


@given(st.text())
def test_text_in_messages_has_no_control_characters_and_is_short(text: str) -> None:
    said = strict.escape_text(text)
    assert said.isprintable() and len(said) <= 2 * strict.SHOWN
