"""Tests of the committed claims: their format, their commands, and that published sizes equal the rows."""

import json
import shlex
from pathlib import Path

import conftest
import pytest

from suite import published
from suite.claims import study
from suite.claims.claim import Claim, load_claims, parse_claims, select_claims
from suite.claims.evidence import identify_study, resolve_decisive
from suite.claims.standings import list_standings
from suite.contract import UserError
from suite.settings import configure
from suite.settings.run import Run

CLAIMS = [claim for paper in load_claims().values() for claim in paper.claims]
CHECKS = [(claim, check) for claim in CLAIMS for check in claim.checks]
FOLDER = conftest.TESTS.parent / "results" / "claims"
LINES = 40  # a reviewer writes a claim in ten minutes


def test_ids_are_unique_and_begin_with_their_paper():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS) >= 35
    assert all(
        claim.id.startswith(name.split("-")[0]) for name, paper in load_claims().items() for claim in paper.claims
    )


@pytest.mark.quick
def test_a_claim_or_a_key_that_is_there_twice_is_named():
    text = (FOLDER / "anil2020-shampoo.yaml").read_text()
    claims = text[text.index("- id:") :]
    first = claims.split("\n")[0].removeprefix("- id: ")
    with pytest.raises(UserError, match=rf"claim \d+ has the id {first}, as claim 1"):
        parse_claims(text + claims.replace("&", "&second_").replace("*", "*second_"), "a.yaml")
    with pytest.raises(UserError, match=r"a\.yaml: line \d+, column \d+: not YAML: the key 'citation' occurs more"):
        parse_claims(text + "citation: another\n", "a.yaml")


def test_a_claim_is_short():
    for path in sorted(FOLDER.glob("*.yaml")):
        starts = [n for n, line in enumerate(path.read_text().splitlines()) if line.lstrip().startswith("- id:")]
        ends = [*starts[1:], len(path.read_text().splitlines())]
        assert max(end - start for start, end in zip(starts, ends, strict=True)) <= LINES, path


def test_the_rows_of_a_claim_are_published_rows():
    for claim in CLAIMS:
        assert [published.find_row(id).id for id in claim.rows] == list(claim.rows), claim.id


RUNS = [(claim, check) for claim, check in CHECKS if check.runs]


@pytest.mark.slow
def test_the_commands_of_a_check_are_complete():
    for claim, check in RUNS:
        for overrides in check.runs.values():
            config = configure.resolve(shlex.split(overrides))
            assert check.scale == "stand-in" or config.scale == "paper", (claim.id, check.name)
            steps = config.max_steps if isinstance(config, Run) else None
            assert not steps or f"{steps:,}" in check.quantity, (
                f"{claim.id}.{check.name}: say that it has {steps:,} steps"
            )
        assert check.needs or check.minutes, f"{claim.id}.{check.name}: state minutes, or what the check needs"
        assert check.scale == "published" or not check.needs, (claim.id, check.name)


@pytest.mark.slow
def test_an_undecided_claim_says_what_would_decide_it():
    for one in list_standings():
        for item in one.checks:
            told = item.seeds_needed or "decide" in (one.claim.note or "")
            assert item.state != "undecided" or told, (
                f"{one.claim.id}.{item.check.name}: say in note what would decide it"
            )


PUBLISHED = [(claim, check) for claim, check in RUNS if check.scale == "published" and claim.rows]


def test_a_check_at_the_published_size_has_the_batch_size_of_a_row():
    for claim, check in PUBLISHED:
        printed = {published.find_row(id).batch_size for id in claim.rows} - {None}
        own = {resolve_decisive(overrides)["task.batch_size"] for overrides in check.runs.values()}
        assert not {size for size in printed if isinstance(size, int)} or own & printed, (claim.id, check.name)


@pytest.mark.parametrize(
    "change, message",
    [
        ("holds: {}", "checks.0.holds: state above, below or both"),
        ("holds: {above: 2, below: 1}", "no value lies between"),
        ("holds: {above: .inf}", "finite number"),
        ("holds: {below: 1}\n    stands_for: x", "a stand-in, and only a stand-in"),
        (
            "holds: {below: 1}\n    statistics: mean",
            "line 12: claims.0.checks.0.statistics: unknown field; did you mean st",
        ),
        ("holds: {below: 1, abve: 2}", "line 11: claims.0.checks.0.holds.abve: unknown field; did you mean above"),
        ("holds: {below: 1}\n    zzz: 3", "checks.0.zzz: unknown field. Accepted here: name, scale, quantity, holds, "),
        ("statistic: exact", "line 7: claims.0.checks.0.holds: is missing. Accepted here: name, scale"),
        ("holds: below 1", "line 11: claims.0.checks.0.holds: must consist of keys and values: above, below"),
        ("holds: {below: 1}\n    statistic: average", "statistic: must be 'mean', 'median', 'share' or 'exact'"),
        ("holds: {below: 1}\n    runs: {a: +task=bert}", "state either runs or study"),
    ],
)
def test_a_malformed_claim_is_rejected_with_its_place(change: str, message: str):
    head = "citation: A\nclaims:\n- id: a\n  statement: b\n  place: c\n  checks:\n  - name: d\n"
    text = f"{head}    scale: published\n    quantity: e\n    study: f\n    {change}\n"
    with pytest.raises(UserError, match=message):
        parse_claims(text, "a.yaml")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "a.yaml: line 1: the file must consist of keys and values: citation, arxiv, where, claims"),
        ("citation: A\nclaims: [", "a.yaml: line 2, column 10: not YAML: "),
        (
            "citation: A\nclaim: []",
            "a.yaml: line 2: claim: unknown field; did you mean claims? Accepted here: citation, arxiv",
        ),
        ("citation: A\nclaims:\n- note: b", "a.yaml: line 3: claims.0.id: is missing. Accepted here: id, statement"),
    ],
)
def test_a_file_that_is_no_file_of_claims_is_rejected_in_one_line(text: str, message: str):
    with pytest.raises(UserError) as error:
        parse_claims(text, "a.yaml")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_every_accepted_field_is_named():
    with pytest.raises(UserError) as error:
        parse_claims("citation: A\nclaims:\n- {id: a, statement: b, place: c, check: []}", "a.yaml")
    assert all(f" {name}" in str(error.value) for name in Claim.model_fields)


def test_an_unknown_claim_is_rejected_with_the_nearest_name():
    with pytest.raises(UserError, match="did you mean osawa2020-fewer-steps"):
        select_claims(["osawa2020-fewer-step"])
    assert [claim.id for _, _, claim in select_claims(["fop2025"])] == ["fop2025-kfac-cifar10"]


def test_every_committed_value_of_a_study_is_of_its_present_code_and_arguments():
    folder = FOLDER.parent / "studies"
    known = {(claim.id, check.name): check for claim, check in CHECKS if check.study}
    values = sorted(folder.rglob("*.json"))
    assert values
    for path in values:
        name, _, seed = path.stem.rpartition("-s")
        content = json.loads(path.read_text())
        origin = identify_study(known[path.parent.name, name])
        assert content["made_by"] == origin, f"{path}: delete it, and run suite reproduce {path.parent.name} --keep"
        assert content["seed"] == int(seed)


def test_a_study_is_outdated_when_one_that_it_imports_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Directly or through another, at the top of a file or in a function."""
    monkeypatch.setattr(study, "FOLDER", tmp_path)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "torch.py").write_text("from suite.studies.deep import x\nimport numpy\n")
    (tmp_path / "deep.py").write_text("from suite.contract import UserError\nx = 1\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "one.py").write_text("def measure(seed):\n    from suite.studies.pack import torch\n")
    names = [str(path.relative_to(tmp_path)) for path in study.list_used_files("one")]
    assert sorted(names) == ["deep.py", "one.py", "pack/__init__.py", "pack/torch.py"] and names[0] == "one.py"


STUDIES = [(claim, check) for claim, check in CHECKS if check.study]


def test_every_study_has_committed_values():
    for claim, check in STUDIES:
        assert list((FOLDER.parent / "studies" / claim.id).glob(f"{check.name}-s*.json")), (claim.id, check.name)
        assert check.minutes is not None, (claim.id, check.name)


def test_a_claim_of_ones_own_must_have_its_own_id(tmp_path: Path):
    own = tmp_path / "mine.yaml"
    own.write_text((FOLDER / "lessard2016-iqc.yaml").read_text())
    with pytest.raises(UserError, match="lessard2016-heavy-ball-cycle: the suite has a claim with this id"):
        select_claims([str(own)])


@pytest.mark.parametrize(
    "line, message",
    [
        ("study: adam-bond", "line 11: study: adam-bond: no such study; did you mean adam-bound"),
        (
            "study: adam-bound\n    arguments: {gradient: sparse}",
            "line 12: arguments: adam-bound: no argument gradient; did you mean gradients",
        ),
        ("study: adam-bound", "line 11: study: adam-bound: the argument gradients is missing; add it to arguments"),
    ],
)
def test_a_study_that_cannot_run_is_rejected_with_its_line(tmp_path: Path, line: str, message: str):
    own = tmp_path / "mine.yaml"
    head = "citation: A\nclaims:\n- id: a\n  statement: b\n  place: c\n  checks:\n  - name: d\n    scale: published\n"
    own.write_text(f"{head}    quantity: e\n    holds: {{below: 1}}\n    {line}\n")
    with pytest.raises(UserError) as error:
        select_claims([str(own)])
    assert message in str(error.value) and str(own) in str(error.value)


def test_the_studies_of_the_suites_own_claims_exist_and_take_their_arguments():
    for claim, check in STUDIES:
        assert study.find_fault(check.study or "", check.arguments) is None, (claim.id, check.name)
