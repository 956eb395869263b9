#!/usr/bin/env bash
# MLflow: does restoring an experiment keep the runs deleted that had been deleted one by one before?
# Guess: yes. Their deletion was a decision of its own, and `restore_experiment` undoes that of the experiment.
# Seen with mlflow 3.17.2 (SQLite store): no. All runs are active again; which of them was deleted by itself is lost.
# Exits 0 while that is so, and 1 if it changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mlflow-skinny==3.17.2 sqlalchemy==2.0.51 alembic==1.20.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from mlflow import MlflowClient, __version__

client = MlflowClient("sqlite:///runs.db")
experiment = client.create_experiment("one")
deleted = client.create_run(experiment).info.run_id
client.create_run(experiment)
client.delete_run(deleted)
before = len(client.search_runs([experiment]))
client.delete_experiment(experiment)
client.restore_experiment(experiment)
after = len(client.search_runs([experiment]))
print(f"mlflow {__version__}: {before} active run before, {after} after the experiment was deleted and restored; guessed 1")
raise SystemExit(0 if (before, after) == (1, 2) else 1)
PYTHON
