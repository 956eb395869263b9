#!/usr/bin/env bash
# transformers: is the `eval_loss` of Trainer, for a causal language model, the cross-entropy of a predicted word?
# Guess: yes, the same number as `model(input_ids=…, labels=…).loss` on the same batch; people report exp(eval_loss).
# Seen with transformers 5.23.0, accelerate 1.15.0: no. The sum is divided by all labels, among them the first of each
# sequence, which nothing predicts: with sequences of 4 words, loss and eval_loss are 3/4 of the cross-entropy.
# Exits 0 while that is so, and 1 if it changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 accelerate==1.15.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
words = torch.randint(0, 16, (8, 4))
data = [{"input_ids": row, "labels": row} for row in words]
drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ends = {"bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=4, n_embd=8, n_layer=1, n_head=1, **ends, **drops))
sizes = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "max_steps": 1, "learning_rate": 0.0}
quiet = {"logging_steps": 1, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
trainer = Trainer(model, TrainingArguments("out", **sizes, **quiet), train_dataset=data, eval_dataset=data)
trainer.train()
logged, evaluated = float(trainer.state.log_history[0]["loss"]), float(trainer.evaluate()["eval_loss"])
model.eval()
with torch.no_grad():
    own = float(model(input_ids=words, labels=words).loss)
print(f"transformers {transformers.__version__}: model's loss {own:.4f}, eval_loss {evaluated:.4f}, logged {logged:.4f}")
print(f"guessed a ratio of 1, found {evaluated / own:.4f} and {logged / own:.4f}")
raise SystemExit(0 if abs(evaluated / own - 0.75) < 1e-3 and abs(logged / own - 0.75) < 1e-3 else 1)
PYTHON
