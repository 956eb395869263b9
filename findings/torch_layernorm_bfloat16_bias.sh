#!/usr/bin/env bash
# torch on a CPU: is the gradient of LayerNorm's bias, a sum over rows, right where the input is bfloat16 and the bias float32?
# Guess: yes. The bias and its gradient are float32, and the linear layer's and BatchNorm's sums are made in float32.
# Seen with torch 2.13.0: no. The rows are added in bfloat16: 65,536 rows of ones give 512, in a float32 tensor.
# Exits 0 while that is so, and 1 if it changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import torch

rows, width = 65_536, 8
x = torch.randn(rows, width).bfloat16()
weight, bias = torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)
torch.nn.functional.layer_norm(x, (width,), weight, bias).sum().backward()
found, dtype = bias.grad.max().item(), bias.grad.dtype
print(f"torch {torch.__version__}: the bias' gradient is {found:g} ({dtype}); guessed {rows}")
raise SystemExit(0 if found < 1000 and dtype == torch.float32 else 1)
PYTHON
