"""Listeners: the console while a run goes on, MLflow afterwards."""
