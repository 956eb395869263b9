"""Settings are declared once: YAML, torch, jax and configuration follow from the declaration."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import engines
import pytest
import yaml

from suite import load
from suite.contract import UserError
from suite.declared import Declared
from suite.nodes import load_settings
from suite.settings import configure, presets

pytestmark = pytest.mark.quick

CONF = Path(presets.__file__).parents[2] / "conf" / "optimizer"
DECLARED = {
    name: settings
    for name in load.find_members("optimizers")
    if (settings := load_settings(f"suite.optimizers.{name}"))
}


# {file: module} of optimizers whose file or name is not the member's
BY_HAND = {"external": "suite.optimizers.external", "kfac_jax": "suite.optimizers.external.kfac_jax"}


@pytest.mark.parametrize("name", sorted(DECLARED.keys() - BY_HAND.keys()))
def test_the_yaml_file_is_what_the_settings_say(name: str) -> None:
    text = (CONF / f"{name}.yaml").read_text()
    assert text == presets.render_yaml(name, DECLARED[name]), "run: python -m suite.settings.presets"
    values = engines.options(yaml.safe_load(text))
    assert values.pop("search") == DECLARED[name].searched()
    assert DECLARED[name].given(values) == DECLARED[name]()


@pytest.mark.parametrize("name, module", BY_HAND.items())
def test_a_yaml_file_written_by_hand_has_the_declared_settings(name: str, module: str) -> None:
    settings = load_settings(module)
    assert settings is not None

    def without_address(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith(("name:", "module:"))]

    text = (CONF / f"{name}.yaml").read_text()
    assert without_address(text) == without_address(presets.render_yaml(name, settings))
    node = yaml.safe_load(text)
    values = engines.options(node)
    assert node["module"] == module and values.pop("search") == settings.searched()
    assert settings.given(values) == settings()


def test_the_page_of_settings_is_what_the_settings_say() -> None:
    page = (CONF.parents[1] / "docs" / "settings.md").read_text()
    assert page == presets.render_page(), "run: python -m suite.settings.presets"


def test_list_prints_settings(suite: Any) -> None:
    code, printed = suite("list", "optimizers", "--settings")
    assert code == 0
    assert all(
        field.description in printed for settings in DECLARED.values() for field in settings.model_fields.values()
    )


@pytest.mark.parametrize("backend", load.BACKENDS)
@pytest.mark.parametrize("name", DECLARED)
def test_signature_and_docstring_list_every_setting(name: str, backend: str) -> None:
    make = importlib.import_module(f"suite.optimizers.{name}.{backend}").make
    parameters = inspect.signature(make).parameters
    for setting, field in DECLARED[name].model_fields.items():
        assert parameters[setting].default == field.default
        assert f"    {setting}: {field.description}" in inspect.getdoc(make)


WRONG: list[tuple[str, str]] = [
    ("lr=-1", "optimizer.lr=-1: must be at least 0"),
    ("beta1=2", "optimizer.beta1=2: must be below 1"),
    ("bias_correction=3", "optimizer.bias_correction=3: must be of type bool, like its default True"),
    ("lr=nan", "optimizer.lr=nan: must be"),
]


@pytest.mark.parametrize("typed, message", WRONG)
def test_a_run_is_checked_against_the_declaration(typed: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        configure.resolve(["task=resnet50", "optimizer=adamw", f"optimizer.{typed}"])
    assert message in str(error.value)


@pytest.mark.parametrize("backend", load.BACKENDS)
@pytest.mark.parametrize(
    "values, message",
    [
        ({"lr": -1.0}, "lr=-1.0: must be at least 0"),
        ({"lr": "0.1"}, "lr='0.1': must be of type float"),
        ({"bias_correction": "true"}, "bias_correction='true': must be of type bool"),
        ({"learning_rate": 0.1}, "learning_rate: unknown"),
    ],
)
def test_alone_an_optimizer_checks_its_settings(backend: str, values: dict[str, Any], message: str) -> None:
    make = importlib.import_module(f"suite.optimizers.adamw.{backend}").make
    with pytest.raises(UserError, match=message):
        make(*([[]] if backend == "torch" else []), **values)


def test_every_optimizer_of_the_suite_declares_its_settings() -> None:
    assert DECLARED.keys() == load.find_members("optimizers").keys()
    assert all(issubclass(settings, Declared) for settings in DECLARED.values())


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    import numpy as np

    assert DECLARED["kfac"].given({"inverse_interval": np.int64(5)}) == DECLARED["kfac"].given({"inverse_interval": 5})
