"""Best possible score on the generated language: exact posteriors of masked words, by forward-backward passes.

All positions are equally likely to be chosen, but a record has a fixed number of chosen words; the passes therefore run
over (state, number of chosen words). The corruption is part of the model: a chosen word appears as [MASK] with 0.8, as
itself with 0.1, as any piece of the vocabulary with 0.1. Whether the second segment continues the first is unknown.
"""

import numpy as np

from suite.tasks.bert.hmm import RANDOM_NEXT, TOPICS, make_language, make_wordpiece
from suite.tasks.bert.sample import KEPT, MASKED

BATCH = 128  # records that are processed together


def compute_best_score(rows: np.ndarray) -> dict[str, float]:
    """Loss and accuracy of the Bayes-optimal prediction, over generated records of one kind.

    Returns:
        `mlm_loss` in nats and `mlm_accuracy` in percent over all masked words, and `nsp_accuracy` in percent if
        records have two segments.
    """
    likelihood, hits, guesses = [], [], []
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        posterior, random_next = compute_posteriors(some)
        label = some["label"][:, : posterior.shape[1]].astype(np.int64) - _first()
        likelihood.append(np.take_along_axis(posterior, label[..., None], 2).ravel())
        hits.append((posterior.argmax(2) == label).ravel())
        guesses.append((random_next > 0.5) == some["random_next"])
    found = {
        "mlm_loss": float(-np.log(np.concatenate(likelihood)).mean()),
        "mlm_accuracy": 100.0 * float(np.concatenate(hits).mean()),
    }
    if (rows["second"] < rows["length"]).all():
        found["nsp_accuracy"] = 100.0 * float(np.concatenate(guesses).mean())
    return found


def _first() -> int:
    """Return the first word's number: words are the vocabulary's last pieces."""
    return make_wordpiece().pieces.size - len(make_language().words)


def compute_posteriors(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Posterior of every masked word (n, M, V), and of the second segment not continuing the first (n,).

    Args:
        rows: (n,) records with the same length, number of segments and number of masked words M.
    """
    world, pieces, count = make_language(), make_wordpiece().pieces, len(rows)
    hidden, each = int(rows["count"][0]), np.arange(count)
    place = _places(rows)  # (n, T)
    seen = np.take_along_axis(rows["tokens"].astype(np.int64), place, 1)
    word = seen - _first()
    emitted = np.where(word[..., None] >= 0, world.emission.T[word.clip(min=0)], 0.0)  # (n, T, K)
    redrawn = (1.0 - KEPT) / pieces.size
    masked = np.where(seen == pieces.mask, MASKED, 0.0)[..., None]
    if_chosen = masked + (KEPT - MASKED) * emitted + redrawn

    restart = np.tile(world.stationary, (TOPICS, 1))
    mixed = (1.0 - RANDOM_NEXT) * world.transition + RANDOM_NEXT * restart
    cut = (place < rows["second"][:, None]).sum(1)  # words in the first segment; T without a second one
    into = [np.where((cut == t)[:, None, None], mixed, world.transition) for t in range(place.shape[1])]  # (n, K, K)

    def absorb(belief: np.ndarray, t: int) -> np.ndarray:
        """(n, K, M + 1) over state and number of chosen words, after one more word; scaled to a sum of 1."""
        more = belief * emitted[:, t, :, None]
        more[:, :, 1:] += belief[:, :, :-1] * if_chosen[:, t, :, None]
        return more / more.sum((1, 2), keepdims=True)

    steps = range(place.shape[1])
    before = np.zeros((len(steps), count, TOPICS, hidden + 1))  # of all words before t
    behind = np.zeros_like(before)  # of all words after t, in the state at t
    past, future = np.zeros_like(before), np.zeros_like(before)  # the same, including the word at t
    before[0, :, :, 0], behind[-1, :, :, 0] = world.stationary, 1.0
    for t in steps:
        if t:
            before[t] = np.einsum("nkc,nkl->nlc", past[t - 1], into[t])
        past[t] = absorb(before[t], t)
    for t in reversed(steps):
        if t < steps[-1]:
            behind[t] = np.einsum("nkl,nlc->nkc", into[t + 1], future[t + 1])
        future[t] = absorb(behind[t], t)

    asked = (place[:, None] < rows["position"][:, :hidden, None]).sum(2)  # (n, M): which word each position holds
    # this word is chosen, so M - 1 others are
    front, back = (side[asked, each[:, None], :, :hidden] for side in (before, behind))
    state = np.einsum("nmkc,nmkc->nmk", front, back[..., ::-1])
    same = np.arange(len(world.words)) == np.take_along_axis(word, asked, 1)[..., None]  # (n, M, V)
    channel = np.take_along_axis(masked, asked[..., None], 1) + (KEPT - MASKED) * same + redrawn
    posterior = (state @ world.emission) * channel

    at = cut.clip(max=steps[-1])
    left, right = past[at - 1, each], future[at, each][..., ::-1]  # M are chosen in total
    goes_on = np.einsum("nkc,kl,nlc->n", left, world.transition, right)
    begins = np.einsum("nkc,kl,nlc->n", left, restart, right)
    random_next = RANDOM_NEXT * begins / (RANDOM_NEXT * begins + (1.0 - RANDOM_NEXT) * goes_on)
    return posterior / posterior.sum(2, keepdims=True), random_next


def _places(rows: np.ndarray) -> np.ndarray:
    """Return whether a position has a word, (n, T): all except [CLS] and the end of each segment."""
    place = np.arange(1, int(rows["length"][0]) - 1)[None].repeat(len(rows), 0)
    between = place == rows["second"][:, None].astype(np.int64) - 1
    return place[~between].reshape(len(rows), -1)
