"""Click prediction with DLRM (Naumov et al. 2019) and its second version with a cross network, on Criteo's click logs.

The network is described in architecture.py, real rows are read by criteo.py, generated ones made by clicks.py; see
CARD.md for sources, licences and targets.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from suite import stream
from suite.contract import Data, Layer, Spec, Target, UserError
from suite.tasks import _nn
from suite.tasks._data import order
from suite.tasks.dlrm import clicks, criteo
from suite.tasks.dlrm.architecture import Architecture, sizes
from suite.tasks.dlrm.criteo import census, check, prepare

__all__ = ["CITATION", "DLRM", "SUMMARY", "VERSION", "census", "check", "make", "prepare"]

CITATION = (
    "Naumov et al.: Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019, "
    "arXiv:1906.00091; Wang et al.: DCN V2, WWW 2021, arXiv:2008.13535"
)
SUMMARY = "Criteo click prediction with DLRM and DLRM-DCNv2"
VERSION = "1"
LARGE = 2**22  # rows from which the order is computed row by row instead of being kept

Batch = dict[str, np.ndarray]


class DLRM:
    """Whether a shown advertisement is clicked: area under the ROC curve on the validation split.

    Args:
        records: where the rows come from.
        architecture: the network's sizes.
        batch_size: global batch.
        eval_batch_size: batch of a validation pass.
        targets: the ladder of AUCs, easiest first.
    """

    name, version, group = "dlrm", VERSION, 1

    def __init__(
        self,
        records: criteo.Records,
        *,
        architecture: Architecture,
        batch_size: int,
        eval_batch_size: int,
        targets: Sequence[float],
    ):
        self.records, self.architecture = records, architecture
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.targets = tuple(Target("auc", value) for value in targets)

    @property
    def data(self) -> Data:
        """Where the rows come from."""
        return self.records.data

    def shapes(self) -> dict[str, Spec]:
        """Every parameter; there are no buffers."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """The linear layers and the tables."""
        return self.architecture.layers()

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """The initial value of one parameter; a table's rows within ±1/√(rows of the table)."""
        value = _nn.draw(self.shapes()[name], seed, name, rows)
        return value * self.architecture.bounds(rows or slice(None)) if name == "tables.weight" else value

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share: `dense` (n, 13), `ids` (n, sum of hots) rows of the tables, `label`, `weight`, `index` (n,)."""
        samples = self.data.samples[split]
        if split == "train":
            place = order.scatter if samples > LARGE else order.take
            rows, numbers = place(samples, batch_size=self.batch_size, seed=seed, index=index)
            weight = np.ones(len(rows), np.float32)
        else:
            rows, weight = order.sweep(samples, batch_size=self.eval_batch_size, index=index)
            numbers = index * self.eval_batch_size + np.arange(len(rows))
        share = len(rows) // world
        mine = slice(rank * share, (rank + 1) * share)
        read = self.records.read(split, rows[mine])
        return read | {"ids": self.places(read["ids"]), "weight": weight[mine], "index": numbers[mine].astype(np.int64)}

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the common table, (n, sum of hots) int32, for one id of each feature, (n, 26).

        A feature with several ids has its own first and others derived from it: the public logs hold one each, and
        MLPerf's second benchmark makes up the rest likewise.
        """
        at, rows = self.architecture, np.asarray(self.architecture.rows)
        slots = np.concatenate([np.arange(count) for count in at.hots])
        repeated = ids[:, at.segments].astype(np.int64)
        if slots.any():
            further = stream.bits(np, (0, 0), "hots", repeated * 131 + slots) % rows[at.segments]
            repeated = np.where(slots > 0, further, repeated)
        return (repeated % rows[at.segments] + at.offsets[at.segments]).astype(np.int32)

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-self.data.samples[split] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """Nothing lives from batch to batch."""
        return {}

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float]:
        """AUC with ties counted half, over the whole split at once, and mean log-loss."""
        from sklearn.metrics import roc_auc_score

        kept = [(part["logit"][part["weight"] > 0], part["label"][part["weight"] > 0]) for part in parts]
        logit, label = (np.concatenate(values).astype(np.float64) for values in zip(*kept, strict=True))
        losses = np.logaddexp(0.0, logit) - label * logit
        return {"auc": float(roc_auc_score(label, logit)), "loss": float(losses.mean())}


class AbsentCriteo:
    """The click logs' sizes without the logs: enough to say what a run would be."""

    data = Data("real", "Criteo 1TB click logs", "not here", {"train": 4_195_197_692, "valid": 89_137_319}, unit="rows")

    def __init__(self, rows: Sequence[int]):
        self.rows = tuple(rows)

    def read(self, split: str, rows: np.ndarray) -> Batch:
        """Nothing can be read."""
        raise UserError("Criteo's click logs are not here; type data_dir=DIRECTORY")


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    published_rows: Sequence[int],
    hots: Sequence[int],
    width: int,
    bottom: Sequence[int],
    top: Sequence[int],
    interaction: str,
    cross_layers: int,
    cross_rank: int,
    limit: int | None,
    placement: str,
    on_error: str = "stop",
    absent: bool = False,
    **options: Any,
) -> DLRM:
    """The task from its configuration (conf/task/dlrm.yaml).

    Args:
        data: `clicks`, generated, or `criteo`, prepared rows of a directory.
        source: what that source's `make` takes.
        variant: v1 or v2; the YAML file says what follows from it.
        published_rows: of each table in the published benchmark, for a task without its data.
        hots: ids of each feature in a sample; one number for all of them will do.
        width: of the tables' rows.
        bottom: widths of the bottom network's hidden layers.
        top: widths of the top network's hidden layers.
        interaction: dot | cross.
        cross_layers: layers of the cross network.
        cross_rank: of its matrices.
        limit: most rows of a table; ids are taken modulo it.
        placement: of the tables, replicated | rows.
        on_error: what `suite data dlrm --to` does with a line that cannot be read.
        absent: describe the task without its directory.
        options: of `DLRM`.

    Raises:
        UserError: for an unknown source.
    """
    sources = {"clicks": clicks, "criteo": criteo}
    if data not in sources:
        raise UserError(f"task.data={data}: unknown; one of {', '.join(sources)}")
    records: Any = AbsentCriteo(published_rows) if absent else sources[data].make(**source)
    rows = sizes(records.rows, limit)
    each = tuple(hots) * len(rows) if len(hots) == 1 else tuple(hots)
    architecture = Architecture(
        rows, each, width, tuple(bottom), tuple(top), interaction, cross_layers, cross_rank, placement
    )
    return DLRM(records, architecture=architecture, **options)
