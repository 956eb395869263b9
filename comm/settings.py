"""Settings of a communication mode and of a network: the groups `comm` and `network` of a configuration."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import PositiveInt

from suite.declared import Declared, setting
from suite.nodes import Part

UNENCODED = "suite.comm.codecs.float32"


class ChannelSettings(Declared):
    """Differences for one kind of values; a null setting is as in `comm`."""

    codec: Part | None = setting(None, "how values are encoded")
    inner: Part | None = setting(None, "codec within a host, for topologies with hosts")
    algorithm: Part | None = setting(None, "how a mean over ranks is computed")
    topology: Part | None = setting(None, "groups of ranks")
    feedback: bool | None = setting(None, "error feedback: add the codec's error to the next values")
    piece_kib: float | None = setting(None, "size of a piece that is encoded by itself, in KiB", at_least=0)


class FactorSettings(ChannelSettings):
    """Exchanges of optimizers: statistics to their owners, roots and inverses back."""

    symmetric: bool = setting(True, "send only one triangle of symmetric matrices")


class CommSettings(Declared):
    """A communication mode; conf/comm/float32.yaml has the values from which the others differ.

    The values of `before` are what the suite did when it had no such setting.
    """

    name: str = setting(..., "name, as reports show it")
    codec: Part = setting(..., "how gradients are encoded")
    algorithm: Part = setting(..., "how a mean over ranks is computed")
    topology: Part = setting(..., "groups of ranks", before={"module": "suite.comm.topologies.flat"})
    inner: Part = setting(..., "codec within a host, for topologies with hosts", before={"module": UNENCODED})
    ranks_per_host: PositiveInt | Literal["auto"] = setting(
        "auto", "ranks of one host; auto: torchrun's value, else all ranks", before="auto"
    )
    feedback: bool = setting(..., "error feedback: add the codec's error to the next values")
    bucket_mib: float = setting(
        ...,
        "send gradients in buckets of at least this size, in MiB; 0: one bucket for each gradient",
        at_least=0,
        before=25,
    )
    piece_kib: float = setting(
        ...,
        "encode what goes to other hosts in pieces of about this size, in KiB, at most about 16; 0: in one piece",
        at_least=0,
    )
    schedule: Part = setting(..., "when gradients are sent", before={"module": "suite.comm.schedules.sync"})
    policy: Part | None = setting(..., "chooses among `candidates` during the run; null: none", before=None)
    candidates: "dict[str, CommSettings]" = setting(..., "modes that a policy chooses from", before={})
    kinds: dict[str, ChannelSettings] = setting(
        ..., "other channels for weights of linear, conv2d, embedding or batchnorm layers, or all others", before={}
    )
    factors: FactorSettings = setting(
        ...,
        "what optimizers exchange",
        before={
            "symmetric": True,
            "codec": {"module": UNENCODED},
            "algorithm": {"module": "suite.comm.algorithms.native"},
        },
    )

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """As `Declared.completed`. Older results encoded in one piece; for values that are not encoded, it is equal."""
        pieces = 512 if values["codec"]["module"] == UNENCODED else 0
        return super().completed({"piece_kib": pieces, **values})


class LinkSettings(Declared):
    """One kind of link: a message of n bytes takes latency + n / bandwidth."""

    latency: float = setting(..., "seconds for each message", at_least=0)
    bandwidth: float = setting(..., "bytes a second in each direction", at_least=1e-9)
    shared: bool = setting(False, "whether all ranks of a host share the bandwidth")


class NetworkSettings(Declared):
    """A network that does not have to exist: for `suite plan`, comm=projected and partition=auto."""

    name: str = setting(..., "name, as reports show it")
    inner: LinkSettings = setting(..., "links between the ranks of one host")
    outer: LinkSettings = setting(..., "links between hosts")
    ranks_per_host: PositiveInt | None = setting(None, "null: all ranks on one host")
    all_reduce: Literal["ring", "tree"] = setting("ring", "algorithm of the native all-reduce")
    all_gather: Literal["ring", "pairs"] = setting("ring", "algorithm of the native all-gather")
    contention: float = setting(0.0, "seconds lost per second of simultaneous computing and sending", at_least=0)
    codec: float = setting(..., "payload bytes that a rank encodes or decodes in a second", at_least=1e-9)
