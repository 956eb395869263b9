"""Detokenised BLEU by sacreBLEU (Post 2018), the one that papers can be compared by."""

from collections.abc import Sequence
from importlib.metadata import version


def bleu(written: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU in 0…100 of detokenised sentences against one reference each, sacreBLEU's defaults."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU().corpus_score(list(written), [list(references)]).score


def signature() -> str:
    """What sacreBLEU calls the computation of `bleu`; without it a BLEU score means little."""
    return f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version('sacrebleu')}"
