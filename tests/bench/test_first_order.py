"""First-order methods against the frameworks' own SGD per step: all of a model's in one process, taking turns.

They compute all the time on one thread, so that the processor's seconds are compared: others on the machine hardly
change those. The suite's SGD is a candidate, not the base: XLA makes a slower program of a whole step with it than with
optax's (3 to 5 % on the encoder, although the updates alone take equally long), which would hide as much in each ratio.
"""

import statistics
import time
from typing import Any

import pytest

from suite import load

from .measure import check_limit, interleaved, ratio
from .test_step import MODELS, made, make_engine, peers, steady, stepper

pytestmark = pytest.mark.bench
METHODS = ("sgd", "adagrad", "rmsprop", "adamw", "lamb", "lars", "sm3")
LIMITS = {"adamw": 1.06, "lamb": 1.06, "lars": 1.06, "sm3": 1.06}
BASE, AGAIN = "own sgd", "own sgd, last"  # the second tells how far equal programs differ by their turn
ROUNDS = 9


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", load.BACKENDS)
def test_first_order_step_against_sgd(backend: str, model: str, benchmark: Any, capsys: Any) -> None:
    own = {"module": "mylab.ownsgd", "lr": 1e-5}
    engines = {BASE: make_engine(backend, model, own)}
    engines |= {name: made(name, backend, model, {"lr": 1e-5}) for name in METHODS}
    engines[AGAIN] = make_engine(backend, model, own)
    candidates = {name: stepper(engine, 1) for name, engine in engines.items()}
    seconds = interleaved(candidates, ROUNDS, clock=time.process_time)
    found = {name: ratio(seconds, name, BASE) for name in (*METHODS, AGAIN)}
    benchmark.pedantic(candidates["sm3"], rounds=1)
    rows = {
        name: steady(backend, model, name, engines[name], candidates[name], seconds, BASE) for name in (*METHODS, AGAIN)
    }
    benchmark.extra_info |= {"ratios": found, "limits": LIMITS, "rows": [rows[name] for name in METHODS]}
    with capsys.disabled():
        base = seconds[BASE]
        print(f"\nfirst order · {backend} · {model} · own sgd {1e3 * statistics.median(base):.0f} ms", end="")
        print(f" ({1e3 * min(base):.0f} to {1e3 * max(base):.0f} ms)")
        for name, each in found.items():
            limit = f", limit {LIMITS[name]}" if name in LIMITS else ""
            row = rows[name]
            held = f"p99 {row['p99']} · state {row['state']} × parameters, in a step at most {row['peak']} more"
            print(f"  {name:<13} {each['median']:.3f} ({each['least']:.2f} to {each['most']:.2f}) · {held}{limit}")
            for peer in peers(backend, model, name):
                print(f"    peer {peer['each']:.2f}  {peer['peer']}")
    over = {name: found[name]["median"] for name in LIMITS if found[name]["median"] > LIMITS[name]}
    check_limit(not over, over)
