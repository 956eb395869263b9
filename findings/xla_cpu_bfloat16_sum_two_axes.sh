#!/usr/bin/env bash
# jax on a CPU: does a sum of bfloat16 over two axes have the accuracy of the same sum over one?
# Guess: yes. XLA adds bfloat16 in float32 on CPUs, and rounds once; over one axis, 4,096 ones are 4,096.
# Seen with jax 0.10.2: no. Over two axes of an array (64, 64, 3), they are 1,024.
# Exits 0 while that is so, and 1 if it changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
from jax import lax


def add(shape, axes):
    ones = jnp.ones(shape, jnp.bfloat16)
    return float(jax.jit(lambda x: lax.reduce_sum_p.bind(x, axes=axes, out_sharding=None))(ones).max())


one, two = add((4096, 3), (0,)), add((64, 64, 3), (0, 1))
print(f"jax {jax.__version__}: 4,096 ones in bfloat16 are {one:g} over one axis and {two:g} over two; guessed the same")
raise SystemExit(0 if one == 4096 and two < 4096 else 1)
PYTHON
