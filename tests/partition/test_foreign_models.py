"""Tests of the table of docs/partition.md: what pipelines make of models that others wrote."""

import foreign_models
import pytest

FAST = ("LLaMA without a mask", "U-Net, BatchNorm", "spectral norm")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in foreign_models.MODELS]
)
def test_a_row_of_the_table_is_what_the_model_does(name: str) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[dev]'")
    assert foreign_models.make_row(name) in foreign_models.PAGE.read_text().splitlines()
