"""Automatic model partitioning: cuts an unmodified model into the stages of a pipeline, with replicas of each stage.

The planner follows RaNNC (Tanaka et al., IPDPS 2021, arXiv:2103.16063) in three levels: components, blocks and stages
(`planner/`; `rannc/` has the original rules for comparison). It needs no framework and no devices. `torch/` and `jax/`
read a model's graph, cut it as planned, and train the stages.
"""
