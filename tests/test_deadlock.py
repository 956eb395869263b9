"""jaxlib 0.10.2 hangs on CPUs when one program holds several batched Cholesky or triangular solves of different sizes.

Optimizers factorise one matrix after another. A run whose curvature has several sizes must end within its deadline.
"""

import subprocess
import sys

import conftest
import pytest

RUN = """
import sys; sys.path[:0] = {paths!r}
import conftest, engines
made = engines.engine(engines.config({optimizer!r}, "jax", precision="float32", hyper={hyper!r}))
sizes = {{key for step in range(3) for key in made.plan.programs(step)}}
assert len(sizes) >= 3, sizes
engines.advance(made, range(3))
print("ended")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "optimizer, hyper",
    [
        ("kfac", {"factor_interval": 1, "inverse_interval": 1}),
        ("shampoo", {"inverse_interval": 1, "start_preconditioning": 1, "block_size": 128}),
    ],
)
def test_refreshes_of_several_sizes_end(optimizer: str, hyper: dict[str, int]) -> None:
    code = RUN.format(paths=[str(conftest.TESTS), str(conftest.OUTSIDE)], optimizer=optimizer, hyper=hyper)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.stdout.strip() == "ended", done.stderr


def test_no_program_holds_several_batched_solves_of_different_sizes() -> None:
    """Every program of a K-FAC step has at most one size of batched factorisation in its compiled text."""
    import re

    import engines

    made = engines.engine(engines.config("kfac", "jax", precision="float32"))
    engines.advance(made, range(1))
    for name, (program, _) in made.programs.compiled.items():
        text = program.as_text()
        calls = re.findall(r"f32\[(\d+),(\d+),\2\][^\n]*custom-call[^\n]*(?:potrf|trsm|cholesky|triangular)", text)
        assert len({size for _, size in calls}) <= 1, (name, calls)
        if name[0] == "programs":
            assert "potrf" in text or "cholesky" in text, f"{name}: the search pattern no longer finds factorisations"


@pytest.mark.parametrize("stale", [False, True])
def test_what_is_always_refreshed_together_is_one_program(stale: bool) -> None:
    """Factors that are due by themselves have a program for each size: every other set of them would be a new one."""
    import engines

    hyper = {"factor_interval": 1, "inverse_interval": 1, "stale": stale}
    made = engines.engine(engines.config("kfac", "jax", precision="float32", hyper=hyper))
    engines.advance(made, range(2))
    found = [name[1] for name in made.programs.compiled if name[0] == "programs"]
    sizes = set(made.plan.buckets.members)
    assert len(sizes) >= 3 and {size for names in found for size in names} == sizes
    assert len(found) == (len(sizes) if stale else 1)
