"""Tests that the list of deliberate bugs (`make mutants`) follows the sources."""

import pytest
from mutants.mutant import ROOT, Mutant, load_mutants


def test_every_bug_of_the_list_still_applies():
    mutants = load_mutants()
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 80
    for mutant in mutants:
        assert mutant.tests and mutant.breaks.endswith("."), mutant.name
        mutant.apply(ROOT)


@pytest.mark.parametrize("old", ["absent", "import"])
def test_a_bug_whose_text_is_not_there_once_is_named(old: str):
    with pytest.raises(ValueError, match=r"broken: .* occurs"):
        Mutant("broken", "suite/cli.py", old, "", "Nothing.", ("tests/test_cli.py",)).apply(ROOT)
