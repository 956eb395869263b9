"""Shows runs: on the console during training, in MLflow afterwards."""
