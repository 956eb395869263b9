"""What optimizers and the engine see of communication: `exact`, `mean`, `to_owners`, `gather`, `mine`.

The channels and a transport come in from outside; each name has its own residuals where error feedback is on, which
the checkpoint keeps.
"""
