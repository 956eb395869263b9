"""Which published rows stand beside a run."""

from dataclasses import replace

import pytest

from suite import load, published
from suite.published import matching
from suite.settings.configure import resolve

TASKS = ("resnet50", "bert", "transformer", "dlrm", "frnn", "autoencoder", "caffenet", "cifar10")


def chosen(*overrides, samples=1281167):
    config = resolve(list(overrides), None)
    return matching.choose_rows(published.find_rows(config.task.name), config, samples=samples)


def test_kfac_stands_beside_sp_ngd_at_the_asked_batch_size():
    paper = ("task=resnet50", "optimizer=kfac", "scale=paper")
    for batch_size, steps, row in ((32768, 1760, "A1-12"), (4096, 10920, "A1-09")):
        assert chosen(*paper, f"task.batch_size={batch_size}", f"max_steps={steps}")[0].id == row


@pytest.mark.parametrize("task", TASKS)
def test_only_results_by_the_task_s_metric_and_model_are_shown(task):
    rows = published.find_rows(task)
    shown = chosen(f"task={task}")
    assert len(shown) <= matching.MOST_ROWS
    assert len({(row.citation, row.optimizer) for row in shown}) == len(shown)
    assert not any(row.model == "ResNet-18" for row in shown if task == "resnet50")
    kept = matching.select_comparable(rows, task)
    assert not {"parameters (millions)", "JET ILW clear shots", "batch_size"} & {row.metric for row in kept}
    assert not any(row.task == "target" or isinstance(row.value, str) for row in kept)
    assert bool(shown) == bool(kept) == (task != "caffenet")  # no file prints CaffeNet's accuracy


def test_own_method_then_model_then_batch_then_epochs():
    row = published.find_row("A1-12")  # ResNet-50, batch 32,768, 45 epochs
    other = replace(row, id="method", optimizer="LARS", citation="B")
    batch = replace(row, id="batch", batch_size=4096, citation="C")
    epochs = replace(row, id="epochs", epochs=90.0, citation="D")
    text = replace(row, id="text", value="matches", citation="E")
    model = replace(row, id="model", model="LeNet", citation="F")
    config = resolve(["task=resnet50", "optimizer=kfac", "task.batch_size=32768", "max_steps=1760"], None)
    order = matching.choose_rows([other, batch, text, epochs, model, row], config, samples=1281167)
    assert [one.id for one in order] == ["A1-12", "epochs", "batch", "method"]
    same_paper = [replace(epochs, citation=row.citation), row]
    assert [one.id for one in matching.choose_rows(same_paper, config, samples=1281167)] == ["A1-12"]
    assert matching.choose_rows([], config, samples=0) == []


def test_the_variant_s_own_model_comes_first():
    models = matching._table()["tasks"]["bert"]["models"]
    assert chosen("task=bert", "task.variant=medium", "optimizer=adamw")[0].model in models["medium"]
    assert chosen("task=bert", "task.variant=large", "optimizer=adamw")[0].model in models["large"]


def test_every_name_of_the_table_is_one_of_the_suite_and_one_of_a_row():
    table, rows = matching._table(), [row for row in published.load_rows() if row.suite_task]
    known = {path.stem for group in ("optimizer", "baseline") for path in load.find_files(group)}
    assert set(table["methods"]) <= known
    assert {name for names in table["methods"].values() for name in names} <= {row.optimizer for row in rows}
    for task, protocol in table["tasks"].items():
        assert set(protocol["metrics"]) <= {row.metric for row in rows if row.suite_task == task}
        models = {name for names in protocol["models"].values() for name in names}
        assert models <= {row.model for row in rows if row.suite_task == task}


def test_a_method_is_matched_by_its_whole_name():
    assert "SP-NGD" in matching.list_methods("kfac") and "K-BFGS" not in matching.list_methods("kfac")
    assert matching.list_methods("adam") == matching.list_methods("no_such_method") == frozenset()
