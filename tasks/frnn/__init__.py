"""Disruption prediction in tokamaks with FRNN (Kates-Harbeck et al. 2019): profiles and signals to an alarm.

A convolutional and recurrent network reads a shot step by step, and outputs one number for each time step. Training
uses parallel streams of shots, cut into chunks; the recurrent state is carried from batch to batch. The metric is the
area under the ROC curve over whole shots. See CARD.md for sources, licences and targets.
"""

import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from suite.contract import Data, Layer, Spec, Target, UserError, append_sizes, divide_total
from suite.tasks import _data, _nn
from suite.tasks._data import order
from suite.tasks.frnn import metric, shots
from suite.tasks.frnn.architecture import Architecture
from suite.tasks.frnn.archive import Absent, Archive
from suite.tasks.frnn.shots import Source, Split, Streams

CITATION = (
    "Kates-Harbeck, Svyatkovskiy, Tang: Predicting disruptive instabilities in controlled fusion plasmas through deep "
    "learning, Nature 568:526-531, 2019"
)
SUMMARY = "disruption prediction in tokamaks with FRNN"
VERSION = "2"  # since dropout draws two elements a word
keeps_result = _nn.keeps_result
PARTS = "classes"  # what `census` counts samples of
MONITORED = (0.07, 0.2, 0.5)  # further deadlines in seconds (plasma-python, monitor_times)
SHARES = ("auc", *(f"auc_{1000 * time:.0f}ms" for time in MONITORED), "early", "missed", "false")

Batch = dict[str, np.ndarray]


class FRNN:
    """Disruption prediction; the metric is the ROC AUC over shots.

    Args:
        source: where the shots come from.
        protocol: `single`, `cross` or `glimpse`; see `shots.split_shots`.
        glimpse: shots of the second machine in training, under `glimpse`.
        architecture: the network's sizes.
        target: `hinge` or `ttd`; see `shots.compute_targets`.
        warning: seconds before a disruption at which the target becomes positive and the early region ends.
        deadline: seconds before a disruption at which an alarm becomes too late; training shots end there.
        ignore: seconds at the start of a shot during which no alarm is raised.
        batch_size: streams of shots, global.
        eval_batch_size: shots of a validation batch.
        length: steps of a chunk.
        targets: the ladder, easiest first.
        activation: after each convolution. The published code has an activation only with batch normalisation, which is
            off in its configuration.
        dropout: rate, on the input, the state and the output of every LSTM.
        l2: penalty on the weights of dense layers and LSTMs, and on the outputs of dense layers.
        on_error: `stop` before the first batch if a shot cannot be used, or `skip` such shots.
    """

    name, version, group = "frnn", VERSION, 1

    undefined = dict.fromkeys(SHARES, "the validation shots are all disruptive, or none of them is")

    def __init__(
        self,
        source: Source,
        *,
        protocol: str,
        glimpse: int,
        architecture: Architecture,
        target: str,
        warning: float,
        deadline: float,
        ignore: float,
        batch_size: int,
        eval_batch_size: int,
        length: int,
        targets: Sequence[float],
        activation: str = "relu",
        dropout: float = 0.0,
        l2: float = 0.0,
        on_error: str = "stop",
    ):
        self.source, self.architecture, self.dt = source, architecture, source.dt
        self.protocol, self.glimpse = protocol, glimpse
        self.target, self.warning, self.length = target, warning, length
        self.deadline, self.ignore = round(deadline / self.dt), round(ignore / self.dt)  # steps
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.activation, self.dropout, self.l2, self.on_error = activation, dropout, l2, on_error
        self.targets = tuple(Target("auc", value) for value in targets)

    @property
    def width(self) -> int:
        """How many numbers of a step the variant reads: the 0D signals, which come first, and in `1d` the profiles."""
        channels = self.source.channels
        return channels.width if self.architecture.profiles else len(channels.signals)

    @functools.cached_property
    def _divided(self) -> dict[str, Split]:
        """Training and validation shots, without a check for unusable shots."""
        return shots.split_shots(self.source, self.protocol, glimpse=self.glimpse)

    @functools.cached_property
    def splits(self) -> dict[str, Split]:
        """Training and validation shots.

        Raises:
            UserError: if some cannot be used and on_error is `stop`, or there are too few.
        """
        divided, faults = self._divided, self.source.data().skipped
        if faults and self.on_error == "stop":
            raise UserError(
                f"{faults[0]}. {len(faults)} of the listed shots cannot be used; repair them, or set "
                "task.on_error=skip to leave them out; the result will list them"
            )
        shots.check_splits(divided)
        return divided

    @functools.cached_property
    def steps(self) -> np.ndarray:
        """Number of training steps of each training shot; a short shot keeps its steps after the deadline."""
        whole = self._divided["train"].steps
        return np.where(whole - self.deadline > self.length, whole - self.deadline, whole)

    @functools.cached_property
    def data(self) -> Data:
        """Data of the shots. A training sample is a chunk of a shot, a validation sample is a whole shot."""
        samples = {"train": int(self._chunks.sum()), "valid": len(self._divided["valid"])}
        data = self.source.data()  # after reading the shots, because unusable ones are then known
        counts = f"{len(self._divided['train'])} training and {samples['valid']} test shots"
        if data.kind == "generated":
            data = replace(data, identity=append_sizes(data.identity, samples))
        return replace(data, samples=samples, note=f"{counts}; {data.note}", unit="sequences")

    @property
    def _chunks(self) -> np.ndarray:
        return -(-self.steps // self.length)

    @property
    def epoch_steps(self) -> float | None:
        """Steps of one pass over the chunks of all training shots; None if the shots are absent."""
        return None if isinstance(self.source, Absent) else self.data.samples["train"] / self.batch_size

    @functools.lru_cache(maxsize=2)  # noqa: B019 the task lives as long as the run
    def _streams(self, seed: int) -> Streams:
        return Streams(self._chunks, streams=self.batch_size, seed=seed)

    def shapes(self) -> dict[str, Spec]:
        """Every parameter."""
        return self.architecture.shapes()

    def layers(self) -> dict[str, Layer]:
        """All linear layers except the recurrent ones."""
        return self.architecture.layers()

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that one chunk of a shot leaves for the backward pass; see `suite.contract.Keeps`."""
        return self.length * self.architecture.count_kept_bytes(value)

    def init(self, seed: int, name: str, rows: slice | None = None) -> np.ndarray:
        """Return the initial value of one parameter; the forget gates' bias is 1, as in Keras."""
        spec = self.shapes()[name]
        value = _nn.draw_initial_value(spec, seed, name)
        if name.startswith("lstm") and name.endswith("bias"):
            value[len(value) // 4 : len(value) // 2] = 1.0
        return value[rows or slice(None)]

    def batch(self, split: str, seed: int, index: int, rank: int = 0, world: int = 1) -> Batch:
        """Rank's share of a batch of n sequences of T steps: a chunk of each stream, or whole shots, padded.

        Returns:
            `signals` (n, T, 0D), `profiles` (n, T, radii, 1D) in the variant `1d`, `target` (n, T), `mask` (n, T) 1
            for steps that count, `begins` (n,) 1 if the carried state is reset, `steps` (n,) of the sequence,
            `disrupted` (n,), `weight` (n,), `index` (n,).
        """
        if split == "train":
            chosen, chunks = self._streams(seed).at(index)
            firsts, weight = chunks * self.length, np.ones(len(chosen), np.float32)
            size, ends = self.length, np.minimum(firsts + self.length, self.steps[chosen])
        else:
            chosen, weight = order.select_evaluation_rows(
                len(self.splits[split]), batch_size=self.eval_batch_size, index=index
            )
            size = -(-int(self.splits[split].steps.max()) // self.length) * self.length
            ends = self.splits[split].steps[chosen]
            firsts = np.zeros(len(chosen), np.int64)
        share = len(chosen) // world
        local = slice(rank * share, (rank + 1) * share)
        numbers = index * len(chosen) + np.arange(len(chosen))
        return self._sequences(split, chosen[local], firsts[local], ends[local], size) | {
            "begins": (firsts == 0)[local],
            "steps": (ends - firsts)[local].astype(np.int32),
            "disrupted": self.splits[split].disrupted[chosen[local]],
            "weight": weight[local],
            "index": numbers[local].astype(np.int64),
        }

    def _sequences(self, split: str, chosen: np.ndarray, firsts: np.ndarray, ends: np.ndarray, size: int) -> Batch:
        """Return the steps of n chosen shots from `firsts` to `ends`, padded with zeros to `size` steps."""
        available, channels = self.splits[split], self.source.channels
        values = np.zeros((len(chosen), size, channels.width), np.float32)
        goal, mask = np.zeros((2, len(chosen), size), np.float32)
        for row, (shot, first, end) in enumerate(zip(chosen, firsts, ends, strict=True)):
            steps, whole = slice(first, end), (int(available.steps[shot]), bool(available.disrupted[shot]))
            values[row, : end - first] = available.raw(shot, steps)
            goal[row, : end - first] = shots.compute_targets(self.target, *whole, dt=self.dt, warning=self.warning)[
                steps
            ]
            mask[row, : end - first] = 1.0
        available.rescale(values, chosen)
        zero = len(channels.signals)
        sequences = {"signals": np.ascontiguousarray(values[..., :zero]), "target": goal, "mask": mask}
        if self.architecture.profiles:
            profiles = values[..., zero:].reshape(len(chosen), size, len(channels.profiles), channels.radii)
            sequences["profiles"] = np.ascontiguousarray(profiles.swapaxes(2, 3))
        return sequences

    def batches(self, split: str) -> int:
        """Batches in one validation pass."""
        return -(-len(self.splits[split]) // self.eval_batch_size)

    def carry(self, samples: int) -> Batch:
        """Every LSTM's hidden state and cell."""
        size = samples, self.architecture.lstm_layers, self.architecture.hidden
        return {"hidden": np.zeros(size, np.float32), "cell": np.zeros(size, np.float32)}

    def score(self, parts: Iterable[Mapping[str, np.ndarray]]) -> dict[str, float | None]:
        """Area under the ROC curve over shots for several deadlines, rates at the best threshold, and mean loss.

        All are undefined if an output is not finite.
        """
        outputs, disrupted, loss, total = [], [], 0.0, 0
        for part in parts:
            real = part["weight"] > 0
            for output, steps, ends in zip(
                part["output"][real], part["steps"][real], part["disrupted"][real], strict=True
            ):
                outputs.append(output[:steps].astype(np.float64))
                disrupted.append(bool(ends))
            loss, total = loss + float(part["loss"][real].sum(dtype=np.float64)), total + int(part["steps"][real].sum())
        metrics = self.areas(outputs, disrupted) | {"loss": divide_total(loss, total)}
        return metrics if _are_finite(outputs) else dict.fromkeys(metrics)  # a hinge loss of infinity may be 0

    def areas(self, outputs: Sequence[np.ndarray], disrupted: Sequence[bool] | np.ndarray) -> dict[str, float | None]:
        """Return the metrics of outputs (steps,) for each shot, which are larger if a disruption is more likely.

        They are undefined if an output is not finite, and without both disruptive and other shots.
        """
        both = 0 < np.count_nonzero(disrupted) < len(outputs)
        if not both or not _are_finite(outputs):
            return dict.fromkeys(self.undefined)
        warning = round(self.warning / self.dt)
        find = functools.partial(metric.collect_peaks, outputs, disrupted, ignore=self.ignore)
        regions = find(deadline=self.deadline, warning=max(warning, self.deadline))
        rates = regions.rates(regions.best())
        areas = {f"auc_{1000 * time:.0f}ms": round(time / self.dt) for time in MONITORED}
        return {
            "auc": regions.area(),
            **{key: find(deadline=steps, warning=max(warning, steps)).area() for key, steps in areas.items()},
            **{name: rates[name] for name in ("early", "missed", "false")},
        }


def _are_finite(outputs: Iterable[np.ndarray]) -> bool:
    return all(np.isfinite(output).all() for output in outputs)


class Described(FRNN):
    """Task without its shots."""

    @property
    def data(self) -> Data:  # type: ignore[override]
        """Published numbers of shots."""
        return self.source.data()


def check(data_dir: str, *, data: str = "archive", **options: Any) -> list[str]:
    """Read all listed shots; return one line for each that a run with these options cannot use."""
    return Archive(data_dir, **options).faults()


def census(data_dir: str, *, data: str = "archive", **options: Any) -> dict[str, dict[str, int]]:
    """Return the number of disruptive and other shots in each list of a directory; no shot is opened."""
    return Archive(data_dir, **options).census()


def count_recurring(data_dir: str, *, source: Mapping[str, Any], protocol: str, glimpse: int, **_: Any) -> int:
    """Return how many validation shots equal a training shot, step by step."""
    archive = Archive(**{**source, "data_dir": data_dir})
    splits = shots.split_shots(archive, protocol, glimpse=glimpse)
    return _data.count_recurring(_measured(splits["train"]), _measured(splits["valid"]))


def _measured(split: Split) -> Iterator[bytes]:
    return (split.raw(shot, slice(None)).tobytes() for shot in range(len(split)))


def make(
    *,
    data: str,
    source: Mapping[str, Any],
    variant: str,
    filters: int,
    conv_layers: int,
    kernel_size: int,
    pool: int,
    dense: int,
    hidden: int,
    lstm_layers: int,
    absent: bool = False,
    **options: Any,
) -> FRNN:
    """Make the task from its configuration (conf/task/frnn.yaml), whose comments describe the options."""
    if absent:
        shots_source: Source = Absent(
            **{name: source[name] for name in ("signals", "profiles", "variant", "radii", "dt")}
        )
    else:
        shots_source = importlib.import_module(f"suite.tasks.frnn.{data}").make(**source)
    channels = shots_source.channels
    architecture = Architecture(
        signals=len(channels.signals),
        profiles=len(channels.profiles) if variant == "1d" else 0,
        radii=channels.radii,
        filters=filters,
        conv_layers=conv_layers,
        kernel_size=kernel_size,
        pool=pool,
        dense=dense,
        hidden=hidden,
        lstm_layers=lstm_layers,
    )
    task = Described if absent else FRNN
    return task(shots_source, architecture=architecture, **options)
