"""List of deliberate bugs: one YAML file for each room of the suite."""

from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A deliberate bug.

    Attributes:
        name: unique in the list.
        file: the source file, from the root of the tree.
        old: text that occurs exactly once in the file.
        new: what replaces it.
        breaks: one sentence that says what is wrong then.
        tests: the files that should notice.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> str:
        """Return the file's text with the bug.

        Raises:
            ValueError: the old text does not occur exactly once, or a file does not exist.
        """
        missing = [name for name in (self.file, *self.tests) if not (root / name).is_file()]
        if missing:
            raise ValueError(f"{self.name}: {missing[0]} does not exist")
        text = (root / self.file).read_text()
        if (found := text.count(self.old)) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.old!r} occurs {found} times in {self.file}")
        return text.replace(self.old, self.new)


def load_mutants() -> list[Mutant]:
    """Read the list. A mutant without `tests` has those of its room."""
    mutants = []
    for path in sorted(FOLDER.glob("*.yaml")):
        room = yaml.safe_load(path.read_text())
        for name, entry in room["mutants"].items():
            mutants.append(Mutant(name, **{"tests": room.get("tests", ()), **entry}))
    return mutants
