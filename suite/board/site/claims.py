"""Claims as the pages show them: the standings by paper and by outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from suite.board.site.text import make_slug
from suite.claims.standing import Standing

# how a verdict, pattern, state or place is coloured; the words are always printed too
TONES = {
    "good": ("reproduced", "pattern seen", "holds", "leads"),
    "bad": ("contradicted", "pattern not seen", "fails"),
    "open": ("undecided",),
}
# verdicts and patterns with a sign for each, beside its colour; the first that a claim has is its outcome
SIGNS = {
    "reproduced": "✓",
    "contradicted": "✗",
    "pattern seen": "(✓)",
    "pattern not seen": "(✗)",
    "undecided": "?",
    "not run": "·",
    "out of reach here": "–",
}


@dataclass(frozen=True)
class PaperView:
    """Claims of one paper."""

    anchor: str
    citation: str
    standings: tuple[Standing, ...]


def list_papers(standings: Sequence[Standing]) -> list[PaperView]:
    """Return the standings by paper, in their order."""
    by_paper: dict[str, list[Standing]] = {}
    for standing in standings:
        by_paper.setdefault(standing.paper, []).append(standing)
    return [
        PaperView(f"paper-{make_slug(paper)}", members[0].citation, tuple(members))
        for paper, members in by_paper.items()
    ]


def group_by_outcome(standings: Sequence[Standing]) -> dict[str, list[Standing]]:
    """Return the standings by outcome: the verdict where it decides, else the pattern of the stand-ins."""
    outcomes: dict[str, list[Standing]] = {word: [] for word in SIGNS}
    for standing in standings:
        known = (standing.verdict, standing.pattern)
        outcomes[next((word for word in SIGNS if word in known), "not run")].append(standing)
    return {word: members for word, members in outcomes.items() if members}


def choose_tone(word: str) -> str:
    """Return the class of the style sheet for a verdict, pattern, state or place."""
    return next((name for name, words in TONES.items() if word in words), "quiet")
