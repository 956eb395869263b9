"""Commands that the documentation prints, found in its pages."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted(ROOT.glob("*/*/CARD.md")) + sorted(ROOT.glob("*/*/*/CARD.md"))
PROGRAMS = ("suite", "python", "pytest", "torchrun", "make", "pip", "git")
START = re.compile(rf"(?:\$ )?((?:{'|'.join(PROGRAMS)})(?: .*)?)$")
INLINE = re.compile(r"`([^`]+)`")
REMARK = re.compile(r" {2,}\S.*$")  # words beside a command stand two spaces away
OUTPUT = ("suite: ", "make = ")  # what the suite says, and code


class Command(NamedTuple):
    """A command, and where it is printed."""

    place: str
    text: str


def printed(page: Path) -> list[str]:
    """Return the commands of one page: those in blocks, with what follows a backslash, and those between backticks."""
    blocks, prose = parted(page.read_text())
    spans = (" ".join(span.split()) for paragraph in prose.split("\n\n") for span in INLINE.findall(paragraph))
    found = [match[1] for line in blocks if (match := START.match(line.strip()))]
    found += [span for span in spans if START.match(span) and " " in span]
    return [REMARK.sub("", text) for text in found if not text.startswith(OUTPUT)]


def parted(text: str) -> tuple[list[str], str]:
    """Return the lines of a page's blocks, those that go on behind a backslash joined, and all other lines."""
    blocks, prose, fenced, lines = [], [], False, iter(text.splitlines())
    for line in lines:
        fenced ^= line.startswith("```")
        if not (fenced or line.startswith("    ")):
            prose.append("" if line.startswith("```") else line)
            continue
        while line.endswith("\\"):
            line = line.removesuffix("\\") + next(lines).strip()
        blocks.append(line)
    return blocks, "\n".join(prose)


def every() -> list[Command]:
    """Each command once, with the first page that prints it."""
    found: dict[str, str] = {}
    for page in PAGES:
        for text in printed(page):
            found.setdefault(text, str(page.relative_to(ROOT)))
    return [Command(place, text) for text, place in found.items()]
