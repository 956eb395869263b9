"""Members outside the tree: what they must offer, and what a run says where they do not."""

import inspect
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import engines
import pytest
import yaml
from reducing import WORLD

from suite import load
from suite.comm import contract, setup
from suite.comm.algorithms import all_to_all
from suite.comm.codecs._codec import Codec
from suite.comm.policies import fastest
from suite.comm.schedules import sync
from suite.comm.topologies import flat
from suite.contract import UserError
from suite.projection import project

PARTS = {"algorithm": all_to_all, "topology": flat, "schedule": sync}
PROTOCOLS = {
    "codecs": contract.Member,
    "algorithms": contract.Algorithm,
    "topologies": contract.Topology,
    "schedules": contract.Schedule,
}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a copy of a member's module under the name mine, changed; None takes a name away."""

    def put(module: ModuleType, **changes: Any) -> str:
        mine, spec = ModuleType("mine"), ModuleSpec("mine", None, is_package=True)
        vars(mine).update(vars(module) | {"__name__": "mine", "__path__": [], "__spec__": spec} | changes)
        for name in [name for name, value in changes.items() if value is None]:
            delattr(mine, name)
        monkeypatch.setitem(sys.modules, "mine", mine)
        return "mine"

    return put


def channels(backend: str | None, **changes: Any) -> Any:
    return setup.make_channels(engines.comm(**changes), engines.tiny(), WORLD, backend)


@pytest.mark.parametrize("group", PROTOCOLS)
def test_members_offer_what_their_protocol_states(group: str) -> None:
    for name in load.find_members(group):
        module = load.load_member(f"{load.GROUPS[group]}.{name}")
        contract.check(name, PROTOCOLS[group], module)


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("part", ["algorithm", "topology"])
def test_a_member_outside_the_tree_needs_one_text(outside: Any, backend: str, part: str) -> None:
    module = outside(PARTS[part])
    assert getattr(channels(backend, **{part: {"module": module}}).default, part).mean is PARTS[part].mean


@pytest.mark.parametrize("backend", [None, "torch", "jax"])
@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("algorithm", {"CLOSED": None}, "algorithm mine: has no CLOSED; add it"),
        ("algorithm", {"traffic": None}, "algorithm mine: has no traffic"),
        ("topology", {"LEVELS": None}, "topology mine: has no LEVELS"),
        ("schedule", {"REMEMBERS": None}, "schedule mine: has no REMEMBERS"),
    ],
)
def test_a_member_that_lacks_something_is_rejected(
    outside: Any, backend: str | None, part: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        channels(backend, **{part: {"module": outside(PARTS[part], **changes)}})


def test_an_algorithm_that_takes_other_arguments_is_rejected(outside: Any) -> None:
    def mean(name: str, values: Any, *, coder: Any, transport: Any) -> Any:
        return values

    with pytest.raises(UserError, match=r"mean\(.*coder.*\) .*must take name, values, encoder, transport"):
        channels("torch", algorithm={"module": outside(all_to_all, mean=mean)})


def test_a_codec_that_lacks_a_method_is_rejected(outside: Any) -> None:
    truncate16 = load.load_member("mylab.truncate16")

    class Lacking(Codec):
        encode, decode, bound = (vars(truncate16.Truncate16)[name] for name in ("encode", "decode", "bound"))

    with pytest.raises(UserError, match="mine: does not define nbytes"):
        channels(None, codec={"module": outside(truncate16, make=Lacking)})


def modes(**policy: Any) -> Any:
    node = engines.comm(policy=policy, candidates={"float32": engines.comm()})
    return setup.make_modes(node, engines.tiny(), WORLD, None)


def test_a_policy_that_lacks_something_is_rejected(outside: Any) -> None:
    with pytest.raises(UserError, match=r"policy mine: has no READS"):
        modes(module=outside(fastest, READS=None), repeats=2)


def test_an_option_that_a_policy_does_not_have_is_rejected() -> None:
    with pytest.raises(UserError, match=r"comm.policy.times: unknown; there are"):
        modes(module="suite.comm.policies.fastest", repeats=2, times=3)


@pytest.mark.parametrize(
    ("policy", "options", "words"),
    [
        ("fastest", {"repeats": 1}, "comm.policy.repeats=1: must be at least 2"),
        ("adaprec", {"commit_steps": 0}, "comm.policy.commit_steps=0: must be at least 1"),
        ("adaprec", {"probe_steps": 2}, "comm.policy.probe_scores=5: must be from 1 to probe_steps=2"),
        ("projected", {"repeats": 0}, "comm.policy.repeats=0: must be at least 1"),
        ("projected", {"error": -1.0}, r"comm.policy.error=-1.0: must be a number or null \(at least 0\)"),
    ],
)
def test_a_policy_checks_its_options_before_the_run(policy: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        modes(module=f"suite.comm.policies.{policy}", **options)


@pytest.mark.parametrize(("part", "name"), [("algorithm", "ring"), ("topology", "flat"), ("schedule", "sync")])
def test_an_option_of_a_part_without_options_is_rejected(part: str, name: str) -> None:
    with pytest.raises(UserError, match=f"comm.{part}.hops: {name} has no such option"):
        channels(None, **{part: {"module": f"suite.comm.{load_group(part)}.{name}", "hops": 2}})


def load_group(part: str) -> str:
    return {"algorithm": "algorithms", "topology": "topologies", "schedule": "schedules"}[part]


@pytest.mark.parametrize(
    ("codec", "option", "value", "kind"),
    [
        ("int8", "block", "many", "of type int"),
        ("int8", "block", 1.5, "of type int"),
        ("table", "bits", True, "of type int"),
        ("minifloat", "scale", 1, "one of absmax, none"),
    ],
)
def test_a_codec_option_of_another_type_is_rejected(codec: str, option: str, value: Any, kind: str) -> None:
    with pytest.raises(UserError, match=f"comm.codec.{option}={value}: must be {kind}"):
        setup.make_codec(engines.part(f"suite.comm.codecs.{codec}", **{option: value}), None)


def test_presets_state_the_defaults_of_their_parts() -> None:
    """Or another value on purpose: the number of bits of a table is in the name of its preset."""
    others = set()
    for path in load.find_files("comm"):
        for node in nodes(yaml.safe_load(path.read_text())):
            member = load.load_member(node["module"])
            function = member.decide if ".policies." in node["module"] else getattr(member, "make", None)
            for option, value in engines.options(node).items():
                default = inspect.signature(function).parameters[option].default  # type: ignore[arg-type]
                if (default, type(default)) != (value, type(value)):
                    others.add((path.stem, option))
    assert others == {("layerwise", "bits"), ("table1", "bits"), ("table2", "bits"), ("table4", "bits")}


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every part of a preset: a node with a module."""
    if isinstance(value, dict):
        if "module" in value:
            yield value
        for inner in value.values():
            yield from nodes(inner)


def test_a_schedule_outside_the_tree_is_projected(outside: Any) -> None:
    assert set(project._schedules("suite.comm.schedules.sync")) == set(load.find_members("schedules"))
    module = outside(sync, projected=lambda parts: 2.0)
    assert project._schedules(module)["mine"](None) == 2.0  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"schedule mine: has no projected"):
        project._schedules(outside(sync, projected=None))


@pytest.mark.parametrize("backend, name", setup.IN_SCHEDULES.items())
def test_a_schedule_without_its_function_is_rejected(
    backend: str, name: str, monkeypatch: pytest.MonkeyPatch, outside: Any
) -> None:
    module = outside(sync)
    monkeypatch.setitem(sys.modules, f"{module}.{backend}", ModuleType("half"))
    with pytest.raises(UserError, match=rf"schedule {module}: {backend}\.py has no {name}; add it"):
        setup._schedule(engines.part(module), backend)
