"""Each task's laptop model as one would write it by hand: a folder a task, a file a framework.

`make(values)` takes the suite's initial values by name and returns the model that starts from them; sizes are those of
conf/task/*.yaml at laptop scale, written out. torch.py and jax.py here make a training step of such a model.
"""
