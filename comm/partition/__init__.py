"""Automatic model partitioning: cuts an unmodified model into the stages of a pipeline, with replicas of each stage.

The planner follows RaNNC (Tanaka et al., IPDPS 2021, arXiv:2103.16063) in three levels: components (`components.py`),
blocks (`blocks.py`) and stages (`stages.py`). It needs no framework and no devices. `torch.py` and `jax.py` read a
model's graph, cut it as planned, and train the stages.
"""
