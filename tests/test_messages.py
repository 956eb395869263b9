"""Messages between ranks come back as they were, and can run no code."""

import ast
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import suite
from suite.comm.partition.calibration import Passes
from suite.comm.policies._policy import Commit, Measure, Predict
from suite.messages import decode_message, encode_message

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    back = decode_message(encode_message(value))
    assert repr(back) == repr(value)


@pytest.mark.quick
def test_dataclasses_keep_their_class() -> None:
    for value in (Measure("a", "b", 2), Predict("a", "b", 2), Passes([0.1], [math.inf]), Commit("m", None, "why")):
        back = decode_message(encode_message({"()": (value, [value])}))
        assert back == {"()": (value, [value])} and type(back["()"][0]) is type(value)
    assert decode_message(encode_message((np.float64(0.1), np.arange(2)))) == (0.1, [0, 1])


@pytest.mark.quick
@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps(print),
        b'{"class": ["os", "system", {"{}": []}]}',
        b'{"class": ["subprocess", "Popen", {"{}": [["args", "true"]]}]}',
        b'{"class": ["suite.launch.local", "subprocess.Popen", {"{}": []}]}',
        b'{"class": ["suite.launch.local", "launch", {"{}": []}]}',
        b'{"class": ["suite.contract", "UserError", {"{}": []}]}',
        b'{"other": 1}',
        b'{"()": [], "{}": []}',
    ],
)
def test_a_message_of_another_kind_is_rejected(message: bytes) -> None:
    with pytest.raises(ValueError):
        decode_message(message)


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(TypeError, match="function: cannot be sent"):
        encode_message([encode_message])


def test_no_module_sends_pickles() -> None:
    root = Path(suite.__file__).resolve().parent
    names = {"broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list"}
    for folder in (root, root / "comm", root / "optimizers"):
        for file in folder.resolve().rglob("*.py"):
            nodes = list(ast.walk(ast.parse(file.read_text())))
            used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            assert not used & (names | {"loads"} if "pickle" in imported(nodes) else names), file


def imported(nodes: list[ast.AST]) -> set[str]:
    return {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
