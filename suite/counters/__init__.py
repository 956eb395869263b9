"""Exact counts of a run: programs, operators, bytes. They are the same on a busy machine, and in every repetition.

`results/counters.yaml` has the counts that a reviewer has accepted; `suite counters` compares.
"""
