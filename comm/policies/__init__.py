"""Policies choose the communication mode of the next steps. Each is a folder; `_policy.py` defines the interface."""
