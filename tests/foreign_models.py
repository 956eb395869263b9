"""Models that others wrote, as pipelines of two and three stages: the table of docs/partition.md.

    python tests/foreign_models.py          # all, about two minutes; writes the table
    python tests/foreign_models.py llama    # prints rows

The configurations are tiny. Each step has four micro-batches; its losses, gradients and buffers are compared with those
of the unmodified model.
"""

import copy
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch_models import Normalized

from suite.comm.partition.device import ONE_HOST, Device
from suite.comm.partition.planner.request import Request
from suite.comm.partition.planning import plan
from suite.comm.partition.torch.alone import run
from suite.comm.partition.torch.trace import trace_model
from suite.contract import UserError
from suite.differences import find_difference, measure_difference

PAGE = Path(__file__).resolve().parents[1] / "docs" / "partition.md"
HEAD = "| model | 2 stages | 3 stages |\n|---|---|---|\n"
WORDS, BATCH, LENGTH, WIDTH, COUNT = 50, 8, 10, 16, 4
Made = tuple[nn.Module, dict[str, Tensor], Tensor]
SMALL = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0}
EXPERTS: dict[str, Any] = {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
EXPERTS |= {"moe_intermediate_size": 16}


def ids() -> Tensor:
    return torch.randint(1, WORDS, (BATCH, LENGTH))


def mask() -> Tensor:
    """1 for words and 0 for what pads a sequence."""
    return (torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1))).long()


def words(kind: str, *, head: str = "ForCausalLM", masked: bool = True, **options: Any) -> Callable[[], Made]:
    """A language model of transformers."""

    def make() -> Made:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**{**SMALL, **options})
        model = getattr(transformers, kind + head)(config)
        return model, {"input_ids": ids(), **({"attention_mask": mask()} if masked else {})}, ids()

    return make


def translation(kind: str, **options: Any) -> Callable[[], Made]:
    """A model of transformers with an encoder and a decoder."""

    def make() -> Made:
        import transformers

        model = getattr(transformers, f"{kind}ForConditionalGeneration")(
            getattr(transformers, f"{kind}Config")(
                vocab_size=WORDS, d_model=WIDTH, pad_token_id=0, decoder_start_token_id=0, **options
            )
        )
        return model, {"input_ids": ids(), "attention_mask": mask(), "decoder_input_ids": ids()}, ids()

    return make


def pictures(kind: str, **options: Any) -> Callable[[], Made]:
    """A classifier of pictures of transformers."""

    def make() -> Made:
        import transformers

        config = getattr(transformers, f"{kind}Config")(image_size=16, num_channels=3, num_labels=5, **options)
        model = getattr(transformers, f"{kind}ForImageClassification")(config)
        return model, {"pixel_values": torch.randn(BATCH, 3, 16, 16)}, torch.randint(0, 5, (BATCH,))

    return make


class Recurrent(nn.Module):
    """Words, two recurrent layers, and a head, as in language models before attention."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = kind(WIDTH, WIDTH, 2, batch_first=True, dropout=0.1)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.layers(self.words(input_ids))[0])


class UNet(nn.Module):
    """Halves and doubles the resolution, with a bridge."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Linear(16, 5)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, images: Tensor) -> Tensor:
        first = self.norm(self.down(images)).relu()
        deep = self.deep(F.max_pool2d(first, 2)).relu()
        return self.head(torch.cat([first, self.up(deep)], 1).mean((2, 3)))


def plain(make: Callable[[], nn.Module], name: str, values: Callable[[], Tensor]) -> Callable[[], Made]:
    """A model of torch."""
    return lambda: (make(), {name: values()}, ids() if name == "input_ids" else torch.randint(0, 5, (BATCH,)))


def images() -> Tensor:
    return torch.randn(BATCH, 3, 8, 8)


KV: dict[str, Any] = {"num_key_value_heads": 2}
HEADS: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32}
HEADS |= {"decoder_ffn_dim": 32}
MODELS: dict[str, Callable[[], Made]] = {
    "BERT": words("Bert", head="ForMaskedLM"),
    "RoBERTa": words("Roberta", head="ForMaskedLM"),
    "DistilBERT": words("DistilBert", head="ForMaskedLM", dim=WIDTH, n_layers=3, n_heads=4, hidden_dim=32),
    "ALBERT": words("Albert", head="ForMaskedLM", embedding_size=8),
    "ELECTRA": words("Electra", head="ForMaskedLM", embedding_size=8),
    "GPT-2": words("GPT2", head="LMHeadModel", n_embd=WIDTH, n_layer=3, n_head=4),
    "OPT": words("OPT", ffn_dim=32, word_embed_proj_dim=WIDTH),
    "GPT-NeoX": words("GPTNeoX"),
    "LLaMA": words("Llama", **KV),
    "LLaMA without a mask": words("Llama", masked=False, **KV),
    "Mistral": words("Mistral", **KV),
    "Gemma 2": words("Gemma2", head_dim=8, **KV),
    "Qwen 2": words("Qwen2", **KV),
    "Qwen 3 MoE": words("Qwen3Moe", head_dim=8, **EXPERTS),
    "Mixtral": words("Mixtral", num_local_experts=4, **KV),
    "Mixtral without a mask": words("Mixtral", num_local_experts=4, masked=False, **KV),
    "T5": translation("T5", d_kv=8, d_ff=32, num_layers=2, num_heads=2),
    "BART": translation("Bart", encoder_layers=2, decoder_layers=2, **HEADS),
    "ViT": pictures("ViT", patch_size=8, **{name: SMALL[name] for name in list(SMALL)[1:4]}, intermediate_size=32),
    "Swin": pictures("Swin", patch_size=2, window_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2]),
    "ConvNeXt": pictures("ConvNext", patch_size=2, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "LSTM": plain(lambda: Recurrent(nn.LSTM), "input_ids", ids),
    "GRU": plain(lambda: Recurrent(nn.GRU), "input_ids", ids),
    "U-Net, BatchNorm": plain(UNet, "images", images),
    "ResNet, BatchNorm": plain(Normalized, "images", images),
    "spectral norm": plain(lambda: nn.utils.spectral_norm(nn.Conv2d(3, 5, 8)), "input", images),
}


def mean_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Mean cross entropy over words or samples."""
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return F.cross_entropy(
        logits.flatten(0, -2) if targets.ndim > 1 else logits.view(BATCH // COUNT, -1), targets.flatten()
    )


def try_model(name: str, stages: int) -> str:
    """Return `exact`, the largest difference as a share of the largest norm, or why the model is rejected."""
    torch.manual_seed(0)
    model, inputs, targets = MODELS[name]()
    whole, size = copy.deepcopy(model.train()).train(), BATCH // COUNT
    try:
        traced = trace_model(model, *pytree.tree_map(lambda leaf: leaf[:size], (inputs, targets)), loss=mean_loss)
        made = plan(traced.graph, Request(stages, BATCH, Device(2**40, 1e9, 1e9), ONE_HOST, stages, COUNT))
    except UserError as error:
        return re.sub(r" \(\S+:\d+\)", "", str(error))
    step = run(traced, made, (inputs, targets), range(COUNT))
    losses = []
    for number in range(COUNT):
        torch.manual_seed(number)
        part = slice(number * size, (number + 1) * size)
        loss = mean_loss(whole(**{key: value[part] for key, value in inputs.items()}), targets[part])
        loss.backward()
        losses.append(loss.detach())
    grads = {key: value.grad for key, value in whole.named_parameters() if value.grad is not None}
    expected = {"losses": torch.stack(losses), **grads, **dict(whole.named_buffers())}
    found = {"losses": torch.stack(step.losses), **step.sums, **dict(model.named_buffers())}
    first, second = ({key: value.detach().numpy() for key, value in one.items()} for one in (expected, found))
    if not find_difference(first, second):
        return "exact"
    return find_difference(first, second, 1e-4) or f"{measure_difference(first, second):.0e}"


def make_row(name: str) -> str:
    """Return a row of the table."""
    return f"| {name} | {try_model(name, 2)} | {try_model(name, 3)} |"


if __name__ == "__main__":
    chosen = [name for name in MODELS if not sys.argv[1:] or any(word in name.lower() for word in sys.argv[1:])]
    rows = [make_row(name) for name in chosen]
    print(HEAD + "\n".join(rows))
    if not sys.argv[1:]:
        before, _, after = PAGE.read_text().partition(HEAD)
        _, _, after = after.partition("\n\n")
        PAGE.write_text(f"{before}{HEAD}" + "\n".join(rows) + f"\n\n{after}")
