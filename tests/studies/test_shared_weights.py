"""K-FAC of a linear network with shared weights."""

import pytest
from claimed import holds

from suite.studies import shared_weights


def test_each_method_is_exact_in_its_setting_only() -> None:
    names = ("expand", "reduce", "expand-elsewhere", "reduce-elsewhere")
    assert all(holds("eschenhagen2023-exact", name, 3) for name in names)


@pytest.mark.parametrize("setting, method", [("expand", "reduce"), ("reduce", "expand")])
def test_with_one_position_both_methods_are_exact(
    setting: shared_weights.Flavour, method: shared_weights.Flavour
) -> None:
    assert shared_weights.measure(0, setting=setting, method=method, positions=1) < 1e-12
