"""Communication modes as hooks of DistributedDataParallel, on two ranks."""

import pool

SENT = {"algorithm": "all_to_all"}
TABLE = {"module": "suite.comm.codecs.table", "bits": 1}
MODES = [  # changes of comm=float32
    {},
    {"codec": "minifloat", **SENT},
    {"codec": "float21", "algorithm": "gather"},
    {"codec": {"module": "suite.comm.codecs.int8", "rounding": "stochastic"}, "algorithm": "ring"},
    {"codec": "onebit", **SENT, "feedback": True},
    {"codec": "onebit", **SENT, "feedback": True, "topology": "two_level", "ranks_per_host": 1},
    {"kinds": {"linear": {"codec": TABLE, "algorithm": {"module": "suite.comm.algorithms.all_to_all"}}}},
]
REFUSED = {
    "comm=adaprec": "comm=adaprec: chooses a mode during a run",
    "comm=overlap": "comm=overlap: decides when gradients are sent",
    "comm.bucket_mib=1": "comm.bucket_mib: is not read here",
    "comm.factors.codec=fp8": "comm.factors.codec: is not read here",
    "optimizer=sgd": "optimizer: is not read here",
    "comm=fp9": "comm=fp9",
}


def ask(job: str, *arguments: object) -> list[object]:
    answers = pool.ask("torch", 2, f"ddp_ranks.{job}", *arguments)
    assert not any(isinstance(answer, pool.Failure) for answer in answers), answers
    return answers


def test_hook_is_reduce() -> None:
    """Every mode gives the bits and the bytes of a run's exchange, also after the buckets change."""
    first, second = ask("train", MODES)
    for changes, one, other in zip(MODES, first, second, strict=True):
        assert not one["different"] + other["different"], changes
        assert one["sent"] == one["expected"] > 0, changes


def test_float32_is_ddp() -> None:
    """comm=float32 trains as torch's own exchange does, bit for bit, on both ranks."""
    (own, hooked), (other, _) = ask("finish")
    assert own == hooked == other


def test_half_precision() -> None:
    """Gradients in bfloat16 are averaged in float32, and keep their type: the mean of 4 and 8 is 6."""
    assert ask("halve") == [["torch.bfloat16", "6.0"]] * 2


OF_MODELS = [
    "send_gradients: the model must use",
    "send_gradients: takes a DistributedDataParallel, and not a Linear",
    "send_gradients: the gradient of the model is sparse",
    "send_gradients: rank 1 has other settings or another seed than rank 0",
]


def test_refused() -> None:
    """A setting that the hook cannot follow, and a model that cannot have one, are errors that name them."""
    for answers in ask("refuse", [[word] for word in REFUSED]):
        for message, start in zip(answers, [*REFUSED.values(), *OF_MODELS], strict=True):
            assert message.startswith(start), message
