#!/usr/bin/env bash
# jax: does another process see an entry of the persistent compilation cache whole, or not at all?
# Guess: yes; many processes share one directory (`JAX_COMPILATION_CACHE_DIR`), so an entry is written elsewhere and renamed.
# Seen with jax 0.10.2 (without a maximum size of the cache): no. The file is written under its own name, so that a reader
# may find the beginning of an entry. jax warns then ("Error reading persistent compilation cache entry") and compiles again.
# Exits 0 while that is so, and 1 if no incomplete entry is seen of twelve programs of 8 MB.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2
cat > "$folder/look.py" <<'PYTHON'
import pathlib
import sys

cache, sizes = pathlib.Path(sys.argv[1]), {}
while not (cache / "done").exists():
    for path in set(cache.glob("*-cache")) - sizes.keys():
        sizes[path] = len(path.read_bytes())  # as a process that looks for this entry now
partial = [path for path, size in sizes.items() if size < path.stat().st_size]
print(f"incomplete when first seen: {len(partial)} of {len(sizes)} entries")
raise SystemExit(0 if partial else 1)
PYTHON
cat > "$folder/fill.py" <<'PYTHON'
import jax
import numpy as np

print("jax", jax.__version__)
draw = np.random.default_rng(0)
for number in range(12):
    weights = draw.random(2_000_000, np.float32)  # a part of the program, whose entry then has 8 MB
    jax.jit(lambda x, weights=weights: x * weights)(np.float32(number)).block_until_ready()
PYTHON
mkdir "$folder/cache"
"$folder/venv/bin/python" "$folder/look.py" "$folder/cache" & looking=$!
JAX_PLATFORMS=cpu JAX_COMPILATION_CACHE_DIR="$folder/cache" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=0 "$folder/venv/bin/python" "$folder/fill.py"
touch "$folder/cache/done"
wait "$looking"
