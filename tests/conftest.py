"""Setup of every test: four host devices for jax, one thread a framework, the members outside the tree."""

import functools
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
OUTSIDE = TESTS / "outside"
MAPPINGS, MOST_MAPPINGS = Path("/proc/self/maps"), 5_000
CACHE = Path.home() / ".cache" / "suite" / "jax-tests"
# XLA's older emitters compile a step in a third of the processor time; `make test-all` compiles as a run does
QUICKLY = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
FLAGS = QUICKLY if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") else ""  # of processes that tests start, too
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
if "jax" not in sys.modules:
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=4 {FLAGS}")
    os.environ.setdefault("NPROC", "8")  # as suite.launch.execution does for several host devices, for the same reason
sys.path[:0] = [str(OUTSIDE), str(TESTS)]
hypothesis.settings.register_profile("no seconds", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("no seconds")


def pytest_report_header() -> str:
    """Say whether the store of compiled programs was full, because the time of the tests depends on it."""
    store = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    return f"compiled programs in {store}: {len(list(store.glob('*-cache')))}"


def inherit(**changes: str) -> dict[str, str]:
    """Return the environment of a process that a test starts: this one's, in which jax has one device."""
    return os.environ | {"XLA_FLAGS": FLAGS} | changes


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave some cases of long sweeps to `make test-all`."""
    import sampling

    sampling.mark_rest(items)


def pytest_collection_finish() -> None:
    """Exclude what lives to the end, such as modules and tests, from every later collection of garbage."""
    gc.freeze()


@pytest.fixture(autouse=True)
def take_seconds_of_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run beside each other, so that their runs wait for a core; tests/test_threads.py has the rule."""
    monkeypatch.setattr("suite.record.record.CROWDED", 1.0)


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """Each program that jax compiles holds memory mappings, of which a process may have 65,530: a worker that ran every
    test crashed when it loaded the next one."""
    yield
    many = not MAPPINGS.exists() or len(MAPPINGS.read_bytes().splitlines()) > MOST_MAPPINGS
    if "jax" in sys.modules and many:
        if "suite.engine.jax_kept" in sys.modules:
            sys.modules["suite.engine.jax_kept"].KEPT.clear()
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def read_each_result_once() -> Iterator[None]:
    """Many commands read all committed results, which takes seconds; what was read from a text does not change."""
    from suite.entries import intake

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "parse_result", functools.lru_cache(4096)(intake.parse_result))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Small real data beside the checkout; tests that need it are skipped without it."""
    folder = TESTS.parent.parent / "shared" / "data"
    if not folder.exists():
        pytest.skip("no ../shared/data beside the checkout")
    return folder


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageNet-like directory from the generator's own writer: 32 training and 16 validation images."""
    from written import write_jpeg

    directory = tmp_path_factory.mktemp("written")
    write_jpeg(directory, train=32, valid=16)
    return directory


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not look for other work: on a busy machine that takes long, and it is billed."""
    from suite.training import loop

    monkeypatch.setattr(loop, "wait_until_idle", lambda patience: True)


@pytest.fixture
def suite_command(tmp_path: Path):
    """Run `suite` in a folder of its own; returns the finished process."""

    def call(*arguments: str, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(OUTSIDE), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, "-m", "suite", *arguments],
            cwd=tmp_path,
            env=inherit(PYTHONPATH=path, PYTHONSAFEPATH="1", COLUMNS="120", **environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return call


@pytest.fixture
def suite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], idle: None
) -> Callable[..., tuple[int, str]]:
    """`suite` in this process and a folder of its own: exit code, and what it and its children printed."""
    from suite import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(OUTSIDE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("XLA_FLAGS", FLAGS)

    def call(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = cli.main(arguments)
        out, err = capfd.readouterr()
        return code, out + err

    return call


@pytest.fixture
def tiny(suite: Callable[..., tuple[int, str]]) -> Callable[..., str]:
    """A run of the tiny task as `suite` makes it, which must end with `code`; returns what was printed."""
    from tiny_runs import TINY

    def call(*arguments: str, code: int = 0) -> str:
        found, text = suite(*TINY, *arguments)
        assert found == code, text
        return text

    return call
