"""Detokenised BLEU by sacreBLEU (Post 2018), which can be compared between papers."""

from collections.abc import Sequence
from importlib.metadata import version


def bleu(written: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU in 0…100 of detokenised sentences against one reference each, sacreBLEU's defaults."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU().corpus_score(list(written), [list(references)]).score


def format_signature() -> str:
    """Return the signature that sacreBLEU gives to `bleu`; BLEU scores are comparable only with equal signatures."""
    return f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version('sacrebleu')}"
