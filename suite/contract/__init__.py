"""Types that tasks, optimizers, engines and the training loop share.

Standard library only, so that every package of the suite and every module outside it can import it.
Arrays are `numpy.ndarray` on the host, `torch.Tensor` or `jax.Array` on a device; trees of them are flat
dictionaries with dotted names (`layer1.0.conv1.weight`) and torch's shapes in both backends.
"""

from suite.contract.engines import Batch, Engine, Group, Loss, Pins, Ranks, Skeleton, Snapshot
from suite.contract.errors import UserError
from suite.contract.events import Checkpointed, Decided, Evaluated, Event, Finished, Saved, Started, Step
from suite.contract.models import JaxModel, Model, TorchModel
from suite.contract.optimizers import (
    CONSTRUCTION,
    OFFERED,
    PROMISED,
    UPDATE,
    Asked,
    JaxOptimizer,
    Objective,
    Parcel,
    Plan,
    Rows,
    TorchOptimizer,
)
from suite.contract.public import OffersPublic, PublicData, PublicFile
from suite.contract.reduce import Reduce
from suite.contract.tasks import (
    DAMAGED,
    LAYER_KINDS,
    Baseline,
    Counts,
    CountsEpochs,
    CountsRecurring,
    Data,
    Explains,
    Generates,
    Keeps,
    KeepsResults,
    Layer,
    SendsBytes,
    Sparse,
    Spec,
    Target,
    Task,
    append_sizes,
    divide_total,
)

__all__ = [
    "CONSTRUCTION",
    "DAMAGED",
    "LAYER_KINDS",
    "OFFERED",
    "PROMISED",
    "UPDATE",
    "Asked",
    "Baseline",
    "Batch",
    "Checkpointed",
    "Counts",
    "CountsEpochs",
    "CountsRecurring",
    "Data",
    "Decided",
    "Engine",
    "Evaluated",
    "Event",
    "Explains",
    "Finished",
    "Generates",
    "Group",
    "JaxModel",
    "JaxOptimizer",
    "Keeps",
    "KeepsResults",
    "Layer",
    "Loss",
    "Model",
    "Objective",
    "OffersPublic",
    "Parcel",
    "Pins",
    "Plan",
    "PublicData",
    "PublicFile",
    "Ranks",
    "Reduce",
    "Rows",
    "Saved",
    "SendsBytes",
    "Skeleton",
    "Snapshot",
    "Sparse",
    "Spec",
    "Started",
    "Step",
    "Target",
    "Task",
    "TorchModel",
    "TorchOptimizer",
    "UserError",
    "append_sizes",
    "divide_total",
]
