"""Click prediction with DLRM (Naumov et al. 2019) and its second version with a cross network, on Criteo's click logs.

architecture.py describes the network, criteo.py reads real rows, and clicks.py generates rows; see CARD.md for sources,
licences and targets.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from suite import stream
from suite.contract import Data, Layer, Spec, Target, UserError, divide_total
from suite.tasks import _nn
from suite.tasks._data import order
from suite.tasks.dlrm import clicks, criteo
from suite.tasks.dlrm.architecture import Architecture, limit_table_sizes
from suite.tasks.dlrm.criteo import census, check, count_recurring, prepare

__all__ = ["CITATION", "DLRM", "PARTS", "SUMMARY", "VERSION", "census", "check", "count_recurring", "make", "prepare"]

CITATION = (
    "Naumov et al.: Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019, "
    "arXiv:1906.00091; Wang et al.: DCN V2, WWW 2021, arXiv:2008.13535"
)
SUMMARY = "Criteo click prediction with DLRM and DLRM-DCNv2"
VERSION = "1"
PARTS = "classes"  # what `census` counts samples of
LARGE = 2**22  # for more rows than this, the order is computed row by row instead of stored

Batch = dict[str, np.ndarray]

# The 1 TB logs: MLPerf's rows (mlcommons/training, recommendation_v2). The Kaggle file has 45,840,617 rows;
# facebookresearch/dlrm trains on six sevenths (39,291,954 in hpcaitech/CacheEmbedding) and halves the rest
PUBLISHED = {
    "terabyte": Data(
        "real", "Criteo 1TB click logs", "not here", {"train": 4_195_197_692, "valid": 89_137_319}, unit="rows"
    ),
    "kaggle": Data("real", "Criteo Kaggle logs", "not here", {"train": 39_291_954, "valid": 3_274_331}, unit="rows"),
}


UNDEFINED = {"auc": "only one class in the validation rows"}


class DLRM:
    """Predict whether an advertisement is clicked; the metric is the area under the ROC curve on the validation split.

    Args:
        records: where the rows come from.
        architecture: the network's sizes.
        batch_size: global batch.
        eval_batch_size: batch of a validation pass.
        targets: the ladder of AUCs, easiest first.
    """

    name, version, group = "dlrm", VERSION, 1

    undefined = UNDEFINED

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
        """Data of the rows."""
        return self.records.data

    def shapes(self) -> dict[str, Spec]:
        """Every parameter; there are no buffers."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """Return the linear layers and the tables."""
        return self.architecture.layers()

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that one row leaves for the backward pass; see `suite.contract.Keeps`."""
        return self.architecture.count_kept_bytes(value)

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """Return the initial value of one parameter; a table's rows within ±1/√(rows of the table)."""
        value = _nn.draw_initial_value(self.shapes()[name], seed, name, rows)
        return value * self.architecture.bounds(rows or slice(None)) if name == "tables.weight" else value

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share: `dense` (n, 13), `ids` (n, sum of hots) rows of the tables, `label`, `weight`, `index` (n,)."""
        samples = self.data.samples[split]
        select = order.compute_training_rows if samples > LARGE else order.select_training_rows
        rows, numbers, weight = order.take_share(self, samples, split, seed, index, rank, world, select)
        read = self.records.read(split, rows)
        return read | {"ids": self.places(read["ids"]), "weight": weight, "index": numbers}

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the common table, (n, sum of hots) int32 or int64, for one id of each feature, (n, 26).

        The public logs have one id for each feature. Further ids of a feature (`hots`) are derived from it, as in
        MLPerf's second benchmark.
        """
        network, rows = self.architecture, np.asarray(self.architecture.rows)
        slots = np.concatenate([np.arange(count) for count in network.hots])
        repeated = ids[:, network.segments].astype(np.int64)
        if slots.any():
            further = stream.bits(np, (0, 0), "hots", repeated * 131 + slots) % rows[network.segments]
            repeated = np.where(slots > 0, further, repeated)
        places = repeated % rows[network.segments] + network.offsets[network.segments]
        return places.astype(np.int32 if rows.sum() <= np.iinfo(np.int32).max else np.int64)

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-self.data.samples[split] // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """{}: nothing is carried from batch to batch."""
        return {}

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
        """AUC with ties counted half, over the whole split at once, and mean log-loss.

        The AUC of rows that are all positive or all negative is undefined, and so are both if a logit is not finite.
        """
        from sklearn.metrics import roc_auc_score

        rows = [(part["logit"][part["weight"] > 0], part["label"][part["weight"] > 0]) for part in parts]
        logit, label = (np.concatenate(values).astype(np.float64) for values in zip(*rows, strict=True))
        if not np.isfinite(logit).all():
            return dict.fromkeys(("auc", "loss"))
        losses = np.logaddexp(0.0, logit) - label * logit
        both = len(np.unique(label)) == 2
        auc = float(roc_auc_score(label, logit)) if both else None
        return {"auc": auc, "loss": divide_total(float(losses.sum()), len(losses))}


class AbsentCriteo:
    """Sizes of the click logs without the logs, which is enough for a plan.

    Args:
        rows: of each table.
        logs: which logs, `kaggle` or `terabyte`.
    """

    def __init__(self, rows: Sequence[int], logs: str):
        self.rows, self.data = tuple(rows), PUBLISHED[logs]

    def read(self, split: str, rows: np.ndarray) -> Batch:
        """Raise `UserError`, because the data is absent."""
        raise UserError("Criteo's click logs are not here; set data_dir=DIRECTORY")


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
    """Make the task from its settings, which settings.py explains.

    `absent` describes it without its directory; `options` are those of `DLRM`.
    """
    module: Any = {"clicks": clicks, "criteo": criteo}[data]
    records: Any = AbsentCriteo(published_rows, source["logs"]) if absent else module.make(**source)
    rows = limit_table_sizes(records.rows, limit)
    ids_per_feature = tuple(hots) * len(rows) if len(hots) == 1 else tuple(hots)
    architecture = Architecture(
        rows, ids_per_feature, width, tuple(bottom), tuple(top), interaction, cross_layers, cross_rank, placement
    )
    return DLRM(records, architecture=architecture, **options)
