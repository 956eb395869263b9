"""A classical baseline: boosted trees on one moment and its recent past, with the same shots and the same metric.

plasma-python's baseline (examples/conf.yaml, `shallow_model`) is XGBoost on windows of a shot's signals: depth 3,
learning rate 0.1, positive steps weighted by 10. Here it is scikit-learn's histogram gradient boosting on means,
spreads and changes over two windows. `suite +task=frnn baseline=trees` fits and scores it (`suite.contract.Baseline`).
"""

from typing import Any

import numpy as np

from suite.tasks.frnn import FRNN, shots

SUMMARY = "frnn: boosted trees on means, spreads and changes over a shot's last 50 and 200 ms"
CITATION = (
    "Chen, Guestrin: XGBoost, a scalable tree boosting system, KDD 2016, arXiv:1603.02754; windows and settings after "
    "PPPLDeepLearning/plasma-python@b13dbed"
)
WINDOWS = (0.05, 0.2)  # lengths in seconds of the features' windows
SAMPLES = 20_000  # approximate number of training steps; neighbours are similar (plasma-python: 1,000,000 at 1 ms)
CHUNK = 100  # shots scored together
POSITIVE = 10.0  # weight of the positive steps in boosting (plasma-python, scale_pos_weight)


def compute_features(values: np.ndarray, *, dt: float) -> np.ndarray:
    """Return the features of each step of one shot: (steps, width) to (steps, (1 + 3 · windows) · width) float32.

    The features are the signals, and their mean, standard deviation and change over each window that ends at the step.
    At the start of a shot, windows begin with the shot. No later step is used.
    """
    steps = np.arange(len(values))
    wide = values.astype(np.float64)
    sums, squares = (np.concatenate([np.zeros_like(x[:1]), x]).cumsum(0) for x in (wide, wide * wide))
    columns = [values]
    for window in WINDOWS:
        first = (steps + 1 - round(window / dt)).clip(0)
        count = (steps + 1 - first)[:, None]
        mean = (sums[1:] - sums[first]) / count
        spread = np.sqrt(((squares[1:] - squares[first]) / count - mean**2).clip(0))
        columns += [mean, spread, wide - wide[first]]
    return np.concatenate(columns, 1).astype(np.float32)


def fit(task: FRNN, seed: int) -> Any:
    """Train on steps of the training shots; the label is whether a disruption follows within `task.warning` seconds.

    Returns:
        A fitted classifier of `compute_features`.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    weights = {False: 1.0, True: POSITIVE}
    model = HistGradientBoostingClassifier(
        max_depth=3, learning_rate=0.1, max_iter=100, class_weight=weights, random_state=seed
    )
    return model.fit(*draw_samples(task, seed))


def draw_samples(task: FRNN, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (rows, width) and labels (rows,) of training steps, at most SAMPLES, drawn evenly from every shot."""
    split, draws = task.splits["train"], np.random.default_rng([seed, SAMPLES])
    share, rows, labels = SAMPLES / task.steps.sum(), [], []
    for shot, count in enumerate(task.steps):
        chosen = draws.random(int(count)) < share
        whole = int(split.steps[shot]), bool(split.disrupted[shot])
        near = shots.compute_targets("hinge", *whole, dt=task.dt, warning=task.warning) > 0
        rows.append(compute_features(split.read(shot, slice(int(count)))[:, : task.width], dt=task.dt)[chosen])
        labels.append(near[:count][chosen])
    return np.concatenate(rows), np.concatenate(labels)


def score(task: FRNN, model: Any) -> dict[str, float | None]:
    """Return the task's metrics of fitted trees, on its validation shots."""
    split, outputs = task.splits["valid"], []
    for first in range(0, len(split), CHUNK):
        batch = [
            compute_features(split.read(shot)[:, : task.width], dt=task.dt)
            for shot in range(first, min(first + CHUNK, len(split)))
        ]
        positive = model.predict_proba(np.concatenate(batch))[:, 1]
        outputs += np.split(positive, np.cumsum([len(rows) for rows in batch])[:-1])
    return task.areas(outputs, split.disrupted)
