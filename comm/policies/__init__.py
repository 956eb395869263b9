"""Policies: how gradients travel for the next steps. A folder each; `_policy.py` says how one asks and decides."""
