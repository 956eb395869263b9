"""What optimizers and the engine see of communication: `exact`, `mean`, `to_owners`, `gather`, `mine`.

A codec, an algorithm and a transport come in from outside; each name has one slot of state (its residual, where error
feedback is on), which the checkpoint keeps.
"""
