"""What the pages show of claims: the standings by paper."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from suite.board.site.text import make_slug
from suite.claims.standing import Standing

# how a verdict, pattern, state or place is coloured; the words are always printed too
TONES = {
    "good": ("reproduced", "pattern seen", "holds", "leads"),
    "bad": ("contradicted", "pattern not seen", "fails", "missed"),
    "open": ("undecided", "first", "tied"),
}


@dataclass(frozen=True)
class PaperView:
    """The claims of one paper."""

    anchor: str
    citation: str
    standings: tuple[Standing, ...]

    @property
    def verdicts(self) -> dict[str, int]:
        """The number of claims by verdict at the published size."""
        return dict(Counter(standing.verdict for standing in self.standings if standing.verdict))

    @property
    def patterns(self) -> dict[str, int]:
        """The number of claims by pattern of their stand-ins."""
        return dict(Counter(standing.pattern for standing in self.standings if standing.pattern))


def list_papers(standings: Sequence[Standing]) -> list[PaperView]:
    """Return the standings by paper, in their order."""
    by_paper: dict[str, list[Standing]] = {}
    for standing in standings:
        by_paper.setdefault(standing.paper, []).append(standing)
    return [
        PaperView(f"paper-{make_slug(paper)}", members[0].citation, tuple(members))
        for paper, members in by_paper.items()
    ]


def choose_tone(word: str) -> str:
    """Return the class of the style sheet for a verdict, pattern, state or place."""
    return next((name for name, words in TONES.items() if word in words), "quiet")
