#!/usr/bin/env bash
# optax: does `rprop` follow a learning rate that is injected and changed later?
# Guess: yes, as every optimizer in optax that takes `learning_rate`: inject_hyperparams makes it a value of the state.
# Seen with optax 0.2.8: no. The rate is read in `init` only; a rate of 0 from the second step on changes nothing.
# Exits 0 while that is so, and 1 if it changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet optax==0.2.8 jax==0.10.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import jax.numpy as jnp
import optax


def lengths(function, rates):
    optimizer = optax.inject_hyperparams(function)(learning_rate=rates[0])
    params = {"w": jnp.ones(3)}
    state, found = optimizer.init(params), []
    for rate in rates:
        state.hyperparams["learning_rate"] = jnp.asarray(rate)
        updates, state = optimizer.update({"w": jnp.ones(3)}, state, params)
        found.append(float(jnp.abs(updates["w"]).max()))
    return found


sgd, rprop = lengths(optax.sgd, [0.1, 0.0, 0.0]), lengths(optax.rprop, [0.1, 0.0, 0.0])
print(f"optax {optax.__version__}: steps at rates .1, 0, 0: sgd {sgd}, rprop {rprop}; guessed 0 from the second on")
raise SystemExit(0 if sgd[1] == 0 < rprop[1] else 1)
PYTHON
