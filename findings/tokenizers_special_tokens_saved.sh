#!/usr/bin/env bash
# tokenizers: is `encode_special_tokens`, which makes control words in a text plain text, part of a saved tokenizer?
# Guess: yes. It decides what every sentence becomes, and `save` writes normalizer, pre-tokenizer and decoder.
# Seen with tokenizers 0.23.1: no. The same text has other numbers after `save` and `from_file`, without an error.
# Exits 0 while that is so, and 1 if it changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tokenizers==0.23.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import Tokenizer, __version__, models, trainers

tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.train_from_iterator(["one </s> two"] * 3, trainers.BpeTrainer(special_tokens=["<unk>", "</s>"], show_progress=False))
tokenizer.encode_special_tokens = True
before = tokenizer.encode("</s>").ids
tokenizer.save("saved.json")
loaded = Tokenizer.from_file("saved.json")
after, control = loaded.encode("</s>").ids, loaded.token_to_id("</s>")
print(f"tokenizers {__version__}: '</s>' is {before} before saving and {after} after loading; the control word is {control}")
raise SystemExit(0 if before != after == [control] else 1)
PYTHON
