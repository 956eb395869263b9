"""Identity of generated data: it holds all that changes the data, sizes included; older results lack sizes."""

import engines
import pytest

from suite.contract import append_sizes
from suite.record import record
from suite.settings.effects import hash_run
from suite.tasks._data import shapes
from suite.tasks.autoencoder import curves
from suite.tasks.bert import hmm
from suite.tasks.bert.sample import Hiding
from suite.tasks.transformer import grammar

pytestmark = pytest.mark.quick


def test_sizes_are_appended_once():
    samples = {"train": 800, "valid": 100}
    assert append_sizes("v1", samples) == append_sizes("v1/800-100", samples) == "v1/800-100"
    assert append_sizes("clicks-1-800-100", samples) == "clicks-1-800-100"
    assert append_sizes("v1/80-100", samples) == "v1/80-100/800-100"


def test_a_directory_is_named_by_all_that_changes_a_number():
    run = engines.config("sgd", "torch")
    changes = ({"seed": 1}, {"max_steps": 5}, {"prefetch": 4}, {"optimizer.lr": 0.3}, {"schedule.floor": 0.1})
    assert len({hash_run(run), *(hash_run(engines.change(run, change)) for change in changes)}) == 1 + len(changes)
    assert hash_run(
        engines.change(run, {"repeat": 2, "run_dir": "here", "data_dir": "there", "save": "none"})
    ) == hash_run(run)


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("kind", ["shapes", "curves", "hmm", "grammar"])
def test_a_generated_split_of_another_size_is_other_data(kind, split):
    def identity(**sizes):
        made = {
            "shapes": lambda: shapes.make(**sizes),
            "curves": lambda: curves.make(**sizes),
            "hmm": lambda: hmm.make(Hiding(0.15, 10), sequence=64, next_sentence=False, **sizes),
            "grammar": lambda: grammar.make(**sizes),
        }[kind]()
        assert record.identify_data(made.data) == made.data.identity
        return made.data.identity

    assert identity(**{split: 50}) != identity(**{split: 60})


def test_words_hidden_as_a_whole_are_other_data():
    one, two = (
        hmm.make(Hiding(0.15, 10, whole), sequence=64, next_sentence=False, train=50).data for whole in (False, True)
    )
    assert one.identity != two.identity
