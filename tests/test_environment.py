"""Facts in a result about the checkout that it was made with."""

import json
import subprocess
from pathlib import Path

import pytest

import suite
from suite.record import environment
from suite.record.facts import Environment


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed one, in the place of this."""
    for name in ("pyproject.toml", "suite/__init__.py", "results/steps.csv", "results/published/rows.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(suite, "__file__", str(tmp_path / "suite/__init__.py"))
    return tmp_path


@pytest.mark.parametrize("name", ["results/steps.csv", "results/runs/frnn/new.json"])
def test_a_result_makes_no_checkout_dirty(checkout: Path, name: str) -> None:
    (checkout / name).parent.mkdir(exist_ok=True, parents=True)
    (checkout / name).write_text("1")
    commit, dirty = environment.read_revision()
    assert len(commit or "") == 40 and dirty is False


@pytest.mark.parametrize("name", ["suite/__init__.py", "suite/new.py", "results/published/rows.yaml"])
def test_whatever_a_run_reads_does(checkout: Path, name: str) -> None:
    (checkout / name).write_text("1")
    assert environment.read_revision()[1] is True


def test_outside_a_checkout_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "__file__", str(tmp_path / "suite/__init__.py"))
    assert environment.read_revision() == (None, None)


MILAN = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nflags\t\t: fma avx avx2\n"
GENOA = MILAN.replace("model\t\t: 1\n", "model\t\t: 17\n").replace("avx2", "avx2 avx512f")
ARM = "CPU implementer\t: 0x41\nFeatures\t: fp asimd sve\nCPU part\t: 0xd40\n"


def test_processors_of_one_name_and_two_kinds_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CPUS", tmp_path / "cpuinfo")
    found = {}
    for text in (MILAN, GENOA, ARM):
        (tmp_path / "cpuinfo").write_text(text + "\nprocessor\t: 1\nmodel name\t: another\n")
        found[text] = environment.capture_environment()
    first, second = found[MILAN], found[GENOA]
    assert first["cpu"] == second["cpu"] == "AMD EPYC"
    assert first["cpu_kind"] == "family 25, model 1, avx2"
    assert second["cpu_kind"] == "family 25, model 17, avx2, avx512f"
    assert found[ARM]["cpu_kind"] == "implementer 0x41, part 0xd40, asimd, sve"
    marks = {environment.compute_fingerprint(facts, device="cpu", threads=1) for facts in found.values()}
    assert len(marks) == 3
    [change] = environment.list_changes(first, second)
    assert change == "the kind of processor (family 25, model 1, avx2 to family 25, model 17, avx2, avx512f)"
    made = [Environment.model_validate_json(json.dumps(facts | {"threads": 1})) for facts in (first, second)]
    assert environment.describe_environment(made[0]) != environment.describe_environment(made[1])
    assert environment.describe_cpu(made[0]) == "AMD EPYC (family 25, model 1, avx2)"
    assert environment.describe_cpu(made[0].model_copy(update={"cpu_kind": None})) == "AMD EPYC"


def test_without_a_list_of_processors_their_kind_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CPUS", tmp_path / "none")
    assert environment.read_cpu_kind() == "" and environment.capture_environment()["cpu"]


def test_versions_of_the_gpus_driver_and_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment.read_gpu_software() == {}
    (tmp_path / "gpus/0000:01").mkdir(parents=True)
    (tmp_path / "gpus/0000:01/information").write_text("Model: \t\t NVIDIA H100\nIRQ: 4\n")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue\nGCC: 12.2\n")
    monkeypatch.setattr(environment, "LIBRARIES", ("torch", "no-such"))
    found = environment.read_gpu_software()
    assert found.pop("driver") == "570.86.15" and "torch" in found and "numpy" not in found
    assert environment.capture_environment()["gpu_software"]["driver"] == "570.86.15"
    (tmp_path / "version").unlink()
    assert "driver" not in environment.read_gpu_software()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environment.read_gpu_software() == {}
