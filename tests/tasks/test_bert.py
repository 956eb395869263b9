"""BERT: published sizes without allocation, the best score there can be, hiding, text to records, damaged files."""

import dataclasses
import itertools
import json
import tracemalloc
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest

from suite import configure, run
from suite.contract import UserError
from suite.tasks._data import order
from suite.tasks.bert import bayes, hmm, packing, preparation, text, wordpiece
from suite.tasks.bert.architecture import Architecture
from suite.tasks.bert.sample import Hiding, Pieces, expand

COUNTS = {"base": 110_106_428, "large": 336_226_108, "enlarged": 2_457_142_844}  # both heads, 30,522 pieces
SMALL = ["layers=2", "hidden=16", "heads=2", "intermediate=32", "sequence=32", "positions=32", "predictions=6"]
SMALL += ["batch_size=8", "eval_batch_size=16", "sources.hmm.options={train: 64, valid: 24}"]
PAIRS = {"sequence": 32, "predictions": 6, "vocabulary": 300, "duplicates": 2, "valid": 0.2}


def task(*options: str, data_dir: Path | None = None) -> Any:
    place = [f"data_dir={data_dir}"] if data_dir else []
    return run.make_task(configure.compose(["task=bert", *place, *(f"task.{o}" for o in (*SMALL, *options))]))


def engine(backend: str, made: Any, optimizer: str = "sgd", **changes: Any) -> Any:
    return engines.engine(
        engines.config(optimizer, backend, **changes) | {"task": {"module": "suite.tasks.bert"}}, made
    )


def published(variant: str) -> Architecture:
    node = configure.compose(["task=bert", f"task.variant={variant}"])["task"]
    sizes = {f.name: node[f.name] for f in dataclasses.fields(Architecture) if f.name in node and f.name != "sparsity"}
    return Architecture(**(sizes | {"vocabulary": 30_522, "next_sentence": True}))


# ------------------------------------------------------------------------------------------------------- sizes
@pytest.mark.parametrize("variant", COUNTS)
def test_published_sizes_from_the_description_and_in_torch(variant: str) -> None:
    import torch

    from suite.tasks.bert.torch import Network

    described = {name: spec.shape for name, spec in published(variant).shapes().items()}
    assert sum(int(np.prod(shape)) for shape in described.values()) == COUNTS[variant]
    with torch.device("meta"):
        model = Network(published(variant), next_weight=1.0)
    assert [(name, tuple(value.shape)) for name, value in model.named_parameters()] == list(described.items())


@pytest.mark.parametrize("variant", ["base", "enlarged"])
def test_published_sizes_in_jax(variant: str) -> None:
    """The abstract gradient of the loss has every parameter."""
    import jax
    import jax.numpy as jnp

    from suite.tasks.bert.jax import Network

    model, batch = Network(published(variant), 1.0), task("next_sentence=true").batch("train", 0, 0)
    params = {n: jax.ShapeDtypeStruct(s.shape, jnp.float32) for n, s in model.sizes.shapes().items()}
    batch = {n: jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype)) for n, v in batch.items()}

    def loss(params: Any, batch: Any) -> Any:
        outputs = model.apply(params, {}, {}, batch, train=True, key=None, tap=lambda name, x, y: y)[0]
        return model.loss(outputs, batch)[0]

    grads = jax.eval_shape(jax.grad(loss), params, batch)
    assert sum(int(np.prod(value.shape)) for value in grads.values()) == COUNTS[variant]


def test_plan_of_the_published_size_needs_no_data(suite_command: Any) -> None:
    done = suite_command("plan", "+task=bert", "scale=paper", "optimizer=adamw")
    assert done.returncode == 1 and "parameters  336,226,108," in done.stdout  # data and a GPU are missing
    assert "missing: data: pre-training records are a directory" in done.stdout


def test_encoder_matrices_are_named_alike() -> None:
    """Whoever prunes or counts FLOPs finds them by name: six in each layer, nothing else."""
    sizes = published("base")
    shapes = sizes.shapes()
    found = [name for name, spec in shapes.items() if name.startswith("encoder.") and len(spec.shape) == 2]
    named = {f"{name}.weight": shape for layer in range(sizes.layers) for name, shape in sizes.matrices(layer).items()}
    assert sorted(found) == sorted(named) and len(found) == 6 * sizes.layers
    assert all(shapes[name].shape == shape for name, shape in named.items())


def test_deep_networks_start_smaller_where_they_write_into_the_residual_stream() -> None:
    sizes = dataclasses.replace(published("enlarged"), layers=2)
    scaled = {n for n, s in sizes.shapes().items() if s.initializer == f"truncated_normal({0.02 / 2!r})"}
    assert scaled == {f"encoder.{layer}.{name}.weight" for layer in range(2) for name in ("out", "down")}


def test_curvature_layers_are_called_once_and_spare_the_tied_table() -> None:
    made = task("next_sentence=true")
    one, calls = engine("torch", made), []
    for name in made.layers():
        one.model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    one.step(0, made.batch("train", 0, 0), {})
    assert sorted(calls) == sorted(made.layers()) and "word" not in calls
    matrices = {n for n, spec in made.shapes().items() if len(spec.shape) == 2}
    assert matrices - {layer.parameters[0] for layer in made.layers().values()} == {"word.weight"}


# ------------------------------------------------------------------------------------------------------ hiding
PIECES = Pieces(size=100, pad=0, cls=2, sep=3, mask=4, continues=np.arange(100) >= 60)


def sentence(length: int, seed: int = 0) -> np.ndarray:
    words = np.random.default_rng(seed).integers(5, 100, length - 2)
    return np.concatenate([[2], words, [3]])


def test_hiding_is_80_10_10_of_15_percent_and_spares_special_pieces() -> None:
    hiding, kinds = Hiding(0.15, 76), np.zeros(3)
    for number in range(400):
        tokens = sentence(128, number)
        corrupted, position = hiding.apply(tokens, PIECES, seed=1, number=number)
        assert len(position) == 19 == round(0.15 * 128) and (np.diff(position) > 0).all()
        assert not np.isin(tokens[position], (2, 3)).any()
        rest = np.setdiff1d(np.arange(128), position)
        assert np.array_equal(corrupted[rest], tokens[rest])
        masked, kept = corrupted[position] == 4, corrupted[position] == tokens[position]
        kinds += masked.sum(), (kept & ~masked).sum(), (~kept & ~masked).sum()
    share = kinds / kinds.sum()
    assert np.abs(share - [0.8, 0.1, 0.1]).max() < 0.015


def test_hiding_depends_on_seed_and_number_only() -> None:
    hiding, tokens = Hiding(0.15, 20), sentence(64)
    first = hiding.apply(tokens, PIECES, seed=1, number=7)
    hiding.apply(tokens, PIECES, seed=1, number=8)
    again = hiding.apply(tokens, PIECES, seed=1, number=7)
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    others = [hiding.apply(tokens, PIECES, seed=s, number=n)[1].tolist() for s, n in ((1, 8), (2, 7))]
    assert first[1].tolist() not in others
    assert Hiding(0.15, 5).count(64) == 5 and Hiding(0.15, 20).count(3) == 1  # at most, and at least one


def test_whole_words_are_hidden_with_all_their_pieces() -> None:
    hiding = Hiding(0.15, 20, whole_word=True)
    long = 0
    for number in range(200):
        tokens = sentence(64, number)
        _, position = hiding.apply(tokens, PIECES, seed=1, number=number)
        assert 0 < len(position) <= 10
        chosen = np.isin(np.arange(64), position)
        inside = PIECES.continues[tokens] & (np.arange(64) > 1)  # goes on from the piece before
        assert (chosen[inside] == chosen[np.flatnonzero(inside) - 1]).all()
        long += int(inside[position].sum())
    assert long > 100


# ----------------------------------------------------------------------------------------- generated language
def test_a_row_of_the_language_does_not_depend_on_the_others() -> None:
    few, many = (hmm.generate("train", count, 32, Hiding(0.15, 6), True) for count in (8, 40))
    assert np.array_equal(few, many[:8]) and not np.array_equal(few[0], few[1])
    assert not np.array_equal(few, hmm.generate("valid", 8, 32, Hiding(0.15, 6), True))


def test_every_word_is_one_piece_and_goes_through_text() -> None:
    pieces, words = hmm.wordpiece(), hmm.language().words
    assert len(set(words)) == hmm.WORDS
    assert [len(ids) for ids in pieces.encode(words)] == [1] * hmm.WORDS
    rows = hmm.generate("train", 8, 32, Hiding(0.15, 6), False)
    batch = expand(rows)
    original = rows["tokens"].astype(int)
    np.put_along_axis(original, batch["position"][:, :5], batch["label"][:, :5], 1)
    for row in original:
        said = pieces.decode(row[1:-1])
        assert set(said.split()) <= set(words)
        assert np.array_equal(pieces.encode([said])[0], row[1:-1])


def test_pairs_have_two_segments_and_half_of_them_do_not_belong_together() -> None:
    rows = hmm.generate("train", 512, 32, Hiding(0.15, 6), True)
    batch = expand(rows)
    assert abs(batch["random_next"].mean() - 0.5) < 0.1
    separators = (rows["tokens"] == 3) | np.array([np.isin(np.arange(32), [s - 1, 31]) for s in rows["second"]])
    assert separators[np.arange(512), rows["second"] - 1].all()
    assert np.array_equal(batch["segment"].sum(1), rows["length"] - rows["second"])
    assert not hmm.generate("train", 8, 32, Hiding(0.15, 6), False)["random_next"].any()


def test_best_prediction_equals_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two states, three words, four places of which two are chosen: every history summed up."""
    transition, emission = np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    tiny = hmm.Language(transition, np.array([0.75, 0.25]), emission, np.zeros((2, 3), int), ["a", "b", "c"])
    pieces = wordpiece.WordPiece([*wordpiece.SPECIAL, "a", "b", "c"])
    for name, value in (("language", lambda: tiny), ("wordpiece", lambda: pieces), ("TOPICS", 2)):
        monkeypatch.setattr(bayes, name, value)
    rows = np.zeros(2, hmm.record(7, 2))
    rows["tokens"] = [[2, 4, 6, 3, 7, 5, 3], [2, 5, 1, 3, 4, 7, 3]]
    rows["length"], rows["second"], rows["count"], rows["position"] = 7, 4, 2, [[1, 4], [2, 4]]
    words, together = bayes.posteriors(rows)

    def channel(seen: int, word: int, chosen: bool) -> float:
        return 0.8 * (seen == 4) + 0.1 * (seen == word + 5) + 0.1 / 8 if chosen else float(seen == word + 5)

    for row, posterior, random_next in zip(rows, words, together, strict=True):
        seen = row["tokens"][[1, 2, 4, 5]]
        found, apart = np.zeros((2, 3)), np.zeros(2)
        for said in itertools.product(range(3), repeat=4):
            prior = np.zeros(2)
            for states in itertools.product(range(2), repeat=4):
                for elsewhere in range(2):
                    p = 0.5 * tiny.stationary[states[0]]
                    for t, state in enumerate(states):
                        if t:
                            fresh = elsewhere and t == 2
                            p *= tiny.stationary[state] if fresh else transition[states[t - 1], state]
                        p *= emission[state, said[t]]
                    prior[elsewhere] += p
            for chosen in itertools.combinations(range(4), 2):
                p = np.prod([channel(s, w, t in chosen) for t, (s, w) in enumerate(zip(seen, said, strict=True))])
                apart += p * prior
                for asked, place in enumerate(row["position"]):
                    t = [1, 2, 4, 5].index(place)
                    found[asked, said[t]] += p * prior.sum() * (t in chosen)
        assert np.allclose(posterior, found / found.sum(1, keepdims=True), atol=1e-12)
        assert abs(random_next - apart[1] / apart.sum()) < 1e-12


def test_best_scores_are_those_of_the_card() -> None:
    options = configure.compose(["task=bert"])["task"]["source"]
    hiding = Hiding(0.15, 10)
    best = bayes.best(hmm.generate("valid", options["valid"], 64, hiding, False))
    assert best == pytest.approx({"mlm_loss": 3.239, "mlm_accuracy": 26.27}, abs=0.005)
    best = bayes.best(hmm.generate("valid", options["valid"], 64, hiding, True))
    assert best == pytest.approx({"mlm_loss": 3.257, "mlm_accuracy": 26.04, "nsp_accuracy": 85.94}, abs=0.005)


# ------------------------------------------------------------------------------------------------ the network
@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_layer_of_the_encoder_is_torchs_own(pre_norm: bool) -> None:
    import torch

    from suite.tasks.bert.torch import EncoderLayer

    torch.manual_seed(0)
    sizes = Architecture(100, 1, hidden=16, heads=4, intermediate=24, positions=8, pre_norm=pre_norm)
    ours = EncoderLayer(sizes, 0)
    theirs = torch.nn.TransformerEncoderLayer(
        16, 4, 24, 0.0, lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 1e-12, True, pre_norm
    )
    attention, parts = theirs.self_attn, (ours.query, ours.key, ours.value)
    weights = {
        "in_proj_weight": torch.cat([p.weight for p in parts]),
        "in_proj_bias": torch.cat([p.bias for p in parts]),
    }
    attention.load_state_dict(weights | {f"out_proj.{name}": value for name, value in ours.out.named_parameters()})
    for mine, its in (("up", "linear1"), ("down", "linear2"), ("norm1", "norm1"), ("norm2", "norm2")):
        theirs.get_submodule(its).load_state_dict(ours.get_submodule(mine).state_dict())
    x, visible = torch.randn(3, 8, 16), torch.arange(8) < torch.tensor([8, 5, 2])[:, None]
    expected = theirs(x, src_key_padding_mask=~visible)
    assert torch.allclose(ours(x, visible[:, None, None], lambda y, name: y), expected, atol=1e-5)


@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_what_is_padded_or_not_asked_for_changes_nothing(backend: str) -> None:
    """Tokens behind the end, and labels and positions behind the last prediction; in loss, gradient and score."""
    made = task("next_sentence=true")
    batch = made.batch("train", 0, 0)
    batch["visible"][:, 20:], batch["masked"][:, 3:] = False, 0.0
    other = {name: value.copy() for name, value in batch.items()}
    batch["position"] %= 20
    other["position"] %= 20
    other["tokens"][:, 20:], other["label"][:, 3:], other["position"][:, 3:] = 7, 8, 9
    one, two = engine(backend, made), engine(backend, made)
    losses = [float(each.losses([each.step(0, b, {})])[0]) for each, b in ((one, batch), (two, other))]
    assert abs(losses[0] - losses[1]) < 1e-12 and engines.gap(engines.weights(one), engines.weights(two)) < 1e-12
    scores = [made.score(one.evaluate([b])) for b in (batch, other)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9)


@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_the_loss_is_the_mean_over_hidden_words_plus_the_mean_over_pairs(backend: str) -> None:
    """Also for label 0 (`ignore_index=0` would drop it), and not a mean of means where samples hide unequally many."""
    made = task("next_sentence=true")
    batch = made.batch("train", 0, 0)
    batch["random_next"][:], batch["masked"][::2, 2:] = 0, 0.0
    one = engine(backend, made)
    sums = next(iter(one.evaluate([batch])))
    score = made.score([sums])
    masks = batch["masked"].sum()
    assert score["mlm_loss"] == pytest.approx(sums["mlm_loss"].sum() / masks, abs=1e-12) and score["nsp_loss"] > 0.1
    loss = float(one.losses([one.step(0, batch, {})])[0])
    expected = score["mlm_loss"] + made.hidden_each * sums["nsp_loss"].sum() / masks
    assert loss == pytest.approx(expected, abs=1e-9) and made.hidden_each == 5.0  # hidden words of 32 tokens


@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_the_decoder_is_the_table_of_words(backend: str) -> None:
    """A word that occurs in no input still learns, as a wrong answer."""
    made = task()
    batch = made.batch("train", 0, 0)
    absent = np.setdiff1d(np.arange(made.architecture.vocabulary), np.union1d(batch["tokens"], batch["label"]))
    one = engine(backend, made, hyper={"lr": 1.0})
    before = engines.weights(one)["word.weight"]
    one.losses([one.step(0, batch, {})])
    assert (np.abs(engines.weights(one)["word.weight"] - before)[absent].max(1) > 0).all()


def test_every_hidden_word_counts_once_in_the_score() -> None:
    made = task()
    parts = [
        {"weight": np.array([1.0, 1.0]), "masks": np.array([1.0, 3.0]), "mlm_hits": np.array([1.0, 0.0])},
        {"weight": np.array([1.0, 0.0]), "masks": np.array([4.0, 9.0]), "mlm_hits": np.array([3.0, 9.0])},
    ]
    parts = [part | {"mlm_loss": 2.0 * part["masks"]} for part in parts]
    assert made.score(parts) == {"mlm_accuracy": 50.0, "mlm_loss": 2.0}


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("kfac", marks=pytest.mark.slow)])
def test_five_updates_agree(optimizer: str) -> None:
    ends = []
    for backend in engines.BACKENDS:
        one = engine(backend, task("next_sentence=true", "dropout=0.1"), optimizer, hyper={"lr": 1e-3})
        engines.advance(one, range(5))
        ends.append(engines.weights(one))
    assert engines.gap(*ends) < 1e-9


# -------------------------------------------------------------------------------------------- order of samples
@pytest.mark.parametrize("samples", [1, 2, 5, 64, 257])
def test_scattered_order_has_each_row_once_an_epoch(samples: int) -> None:
    rows = np.concatenate([order.scatter(samples, batch_size=8, seed=3, index=i)[0] for i in range(samples)])
    epochs = rows.reshape(8, samples)
    assert (np.sort(epochs) == np.arange(samples)).all()
    if samples >= 64:
        assert len({epoch.tobytes() for epoch in epochs}) == 8
        for pattern in (np.arange(samples), np.arange(samples) % 8, np.arange(samples) % 32):
            assert abs(np.corrcoef(pattern, epochs[0])[0, 1]) < 0.3


def test_scattered_order_of_a_billion_rows_takes_no_memory() -> None:
    tracemalloc.start()
    rows, _ = order.scatter(10**9, batch_size=256, seed=0, index=12_345_678)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 and len(set(rows.tolist())) == 256 and rows.max() > 10**8


# ------------------------------------------------------------------------------------------------------- text
def test_wikiextractors_blocks_are_documents_without_their_titles(tmp_path: Path) -> None:
    wanted = hmm.documents(5, sentences=3)
    for name in ("wiki_00", "wiki_01.gz", "wiki_02.bz2"):
        text.write(tmp_path / name, wanted)
        assert list(text.documents(tmp_path / name)) == wanted
    assert [path.name for path in text.files(tmp_path)] == ["wiki_00", "wiki_01.gz", "wiki_02.bz2"]


def test_headings_or_blank_lines_separate_documents(tmp_path: Path) -> None:
    headed, plain = tmp_path / "headed.txt", tmp_path / "plain.txt"
    headed.write_text(
        " \n = One = \n \n A first . And a second . \n = 1 / s and k = \n 1 . \n"
        " \n = = Part = = \n \n Third . \n \n = Two = \n \n Fourth . \n"
    )
    plain.write_text('One. "Two." Three?\nfour\n\n\n5 is a number. See i.e. this.\n')
    assert list(text.documents(headed)) == [
        ["A first .", "And a second .", "= 1 / s and k =", "1 .", "Third ."],
        ["Fourth ."],
    ]
    assert list(text.documents(plain)) == [
        ["One.", '"Two."', "Three?", "four"],
        ["5 is a number.", "See i.e. this."],
    ]


def damaged(folder: Path, kind: str) -> tuple[Path, str]:
    path = folder / ("wiki_07.gz" if kind == "gz" else "wiki_07")
    text.write(path, hmm.documents(40))
    content = path.read_bytes()
    if kind == "utf8":
        lines = content.splitlines(keepends=True)
        lines[9] = b"caf\xe9 au lait .\n"
        path.write_bytes(b"".join(lines))
        return path, f"{path}, line 10: not UTF-8 (byte 0xe9 at 4)"
    path.write_bytes(content[: len(content) // 2])
    return path, f"{path}, after line" if kind == "gz" else f"{path}, line "


@pytest.mark.parametrize("kind", ["utf8", "gz", "unclosed"])
def test_damaged_text_is_named_with_its_line_and_can_be_skipped(tmp_path: Path, kind: str) -> None:
    source, target = tmp_path / "text", tmp_path / "made"
    source.mkdir()
    text.write(source / "wiki_00", hmm.documents(40))
    path, message = damaged(source, kind)
    with pytest.raises(UserError) as error:
        preparation.prepare(source, target, **PAIRS)
    assert str(error.value).startswith(message) and "task.on_error=skip" in str(error.value)
    assert kind != "unclosed" or "never closed" in str(error.value)
    preparation.prepare(source, target, on_error="skip", **PAIRS)
    found = task("data=records", "next_sentence=true", data_dir=target).data.skipped
    assert len(found) == 1 and found[0].startswith(str(path))


def test_a_directory_without_text_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("not a text to learn from")
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(UserError, match="WikiExtractor's files"):
        text.files(tmp_path)


# -------------------------------------------------------------------------------------------------- WordPiece
def test_wordpiece_takes_the_longest_piece_first_and_comes_back() -> None:
    pieces = wordpiece.WordPiece([*wordpiece.SPECIAL, "un", "##aff", "##able", "##a", "affable", "u", "."])
    assert [pieces.vocabulary[i] for i in pieces.encode(["Unaffable affable."])[0]] == [
        *("un", "##aff", "##able"),
        *("affable", "."),
    ]
    assert pieces.decode(pieces.encode(["unaffable"])[0]) == "unaffable"
    assert pieces.encode(["xyz"])[0].tolist() == [1] and pieces.pieces.continues.sum() == 3


def test_a_trained_vocabulary_covers_its_text_and_is_the_same_each_time() -> None:
    said = [" ".join(document) for document in hmm.documents(30)]
    one, two = (wordpiece.train(lambda: said, 200) for _ in range(2))
    assert one.vocabulary == two.vocabulary and len(one.vocabulary) == 200
    assert not any(1 in ids for ids in one.encode(said))
    assert one.decode(one.encode(said[:1])[0]) == said[0]


def test_a_vocabulary_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n")
    with pytest.raises(UserError, match=r"vocab\.txt: \[MASK\] is missing"):
        wordpiece.read(path)
    path.write_text("\n".join([*wordpiece.SPECIAL, "word", "other", "word"]))
    with pytest.raises(UserError, match=r"vocab\.txt, line 8: 'word' stands in line 6 already"):
        wordpiece.read(path)


# ---------------------------------------------------------------------------------------------------- packing
def test_pairs_are_cut_from_their_documents() -> None:
    """Each token is its document's number and place: true pairs go on, random ones come from another document."""
    documents = [[np.arange(5) + 1000 * d + 5 * s for s in range(12)] for d in range(1, 6)]
    cut = packing.Packing(32, True, 0.1).cut
    pairs = [pair for seed in range(5) for pair in cut(documents, np.random.default_rng(seed))]
    kinds = {True: 0, False: 0}
    for pair in pairs:
        assert len(pair.first) and len(pair.second) and len(pair.first) + len(pair.second) <= 29
        same = pair.first[0] // 1000 == pair.second[0] // 1000
        assert same == (not pair.random_next)
        assert all((np.diff(part) == 1).all() for part in (pair.first, pair.second))
        assert pair.random_next or pair.second[0] > pair.first[-1]
        kinds[pair.random_next] += 1
    assert min(kinds.values()) > 5
    singles = list(packing.Packing(32, False, 0.0).cut(documents, np.random.default_rng(0)))
    assert {len(pair.first) for pair in singles} == {30} and not any(len(pair.second) for pair in singles)
    assert sorted(np.concatenate([pair.first for pair in singles])) == sorted(
        np.concatenate([s for d in documents for s in d])
    )


# ---------------------------------------------------------------------------------------------------- records
@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of the generated language as WikiExtractor writes it, prepared in several shards."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "text" / "AA").mkdir(parents=True)
    for number in range(3):
        text.write(folder / "text" / "AA" / f"wiki_0{number}", hmm.documents(60)[20 * number : 20 * number + 20])
    preparation.prepare(folder / "text", folder / "records", group=2000, **PAIRS)
    return folder


def copied(made: Path, target: Path) -> Path:
    target.mkdir()
    for path in (made / "records").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_records_hold_the_text(made: Path) -> None:
    found = task("data=records", "next_sentence=true", data_dir=made / "records")
    pieces = wordpiece.read(made / "records" / "vocab.txt")
    said = " ".join(" ".join(document) for path in text.files(made / "text") for document in text.documents(path))
    said = pieces.decode(pieces.encode([said])[0])  # punctuation apart
    assert found.data.kind == "real" and found.architecture.vocabulary == len(pieces.vocabulary) == 300
    for index in range(3):
        batch = found.batch("train", 0, index)
        for n in range(len(batch["tokens"])):
            tokens, count = batch["tokens"][n].copy(), int(batch["masked"][n].sum())
            tokens[batch["position"][n, :count]] = batch["label"][n, :count]
            first = tokens[batch["visible"][n] & (batch["segment"][n] == 0)]
            assert first[0] == pieces.pieces.cls and first[-1] == pieces.pieces.sep
            assert pieces.decode(first[1:-1]).removeprefix("##") in said
            assert count == Hiding(0.15, 6).count(int(batch["visible"][n].sum()))


def test_shares_and_batches_of_records_at_random_access(made: Path) -> None:
    one, two = (task("data=records", "next_sentence=true", data_dir=made / "records") for _ in range(2))
    assert len(one.source.paths["train"]) > 3
    order_of_calls = [5, 0, 40, 5]
    for index in order_of_calls:
        whole = one.batch("train", 1, index)
        shares = [two.batch("train", 1, index, rank, 2) for rank in range(2)]
        for name, value in whole.items():
            assert np.array_equal(value, np.concatenate([share[name] for share in shares])), name
    count = one.data.samples["train"]
    seen = [order.scatter(count, batch_size=1, seed=1, index=i)[0][0] for i in range(count)]
    assert sorted(seen) == list(range(count))
    rows = one.source.read("train", np.arange(count))
    stacked = np.concatenate([np.load(path) for path in one.source.paths["train"]])
    assert np.array_equal(rows, stacked)


def test_preparing_again_gives_the_same_bytes_and_not_over_others(made: Path, tmp_path: Path) -> None:
    preparation.prepare(made / "text", tmp_path / "again", group=2000, **PAIRS)
    one, two = (json.loads((folder / "manifest.json").read_text()) for folder in (made / "records", tmp_path / "again"))
    assert one == two
    with pytest.raises(UserError, match="holds prepared records"):
        preparation.prepare(made / "text", tmp_path / "again", **PAIRS)
    (made / "text" / "vocab.txt").write_text((made / "records" / "vocab.txt").read_text())
    given = preparation.prepare(made / "text", tmp_path / "given", **(PAIRS | {"vocabulary": 7}))
    (made / "text" / "vocab.txt").unlink()
    assert given["vocabulary"] == one["vocabulary"]


def test_memory_does_not_grow_with_the_text_or_the_records(tmp_path: Path) -> None:
    preparing, reading, size = [], [], []
    for copies in (1, 1, 4):  # the first time also fills caches
        source, target = (tmp_path / f"{kind}{len(reading)}" for kind in ("text", "records"))
        source.mkdir()
        for number in range(copies):
            text.write(source / f"wiki_{number:02d}", hmm.documents(40))
        tracemalloc.start()
        preparation.prepare(source, target, group=1500, **PAIRS)
        preparing.append(tracemalloc.get_traced_memory()[1])
        found = task("data=records", "next_sentence=true", data_dir=target)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for index in range(40):
            found.batch("train", 0, index)
        reading.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()
        size.append(sum(path.stat().st_size for path in target.iterdir()))
    # what other code's leftovers take meanwhile is tens of kilobytes; holding the records would take all that was added
    added = size[2] - size[1]
    assert preparing[2] < 1.2 * preparing[1] and reading[2] < reading[1] + added / 2, (preparing, reading, size)


def test_a_truncated_or_missing_shard_is_named_and_can_be_skipped(made: Path, tmp_path: Path) -> None:
    folder = copied(made, tmp_path / "records")
    options = ("data=records", "next_sentence=true")
    whole = task(*options, data_dir=folder).data.samples["train"]
    shard = folder / "train-00001.npy"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"train-00001\.npy: [\d,]+ bytes, and the manifest says"):
        task(*options, data_dir=folder)
    found = task(*options, "on_error=skip", data_dir=folder)
    assert found.data.skipped == ("train-00001.npy",) and found.data.samples["train"] < whole
    found.batch("train", 0, 3)
    shard.unlink()
    with pytest.raises(UserError, match=r"train-00001\.npy: missing"):
        task(*options, data_dir=folder)


def test_records_of_another_form_are_refused(made: Path, tmp_path: Path) -> None:
    folder = copied(made, tmp_path / "records")
    for option, words in (
        ("next_sentence=false", "task.next_sentence=true"),
        ("predictions=5", "task.predictions=6"),
        ("whole_word=true", "task.whole_word=false"),
    ):
        with pytest.raises(UserError, match=words):
            task("data=records", "next_sentence=true", option, data_dir=folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json: not JSON"):
        task("data=records", data_dir=folder)
    with pytest.raises(UserError, match="suite data bert --from TEXT --to DIR"):
        task("data=records", data_dir=tmp_path)


def test_suite_data_prepares_checks_and_finds_changed_bytes(suite_command: Any, made: Path) -> None:
    options = [f"task.{o}" for o in ("sequence=32", "predictions=6", "next_sentence=true")]
    options += [f"task.sources.records.prepare.{o}" for o in ("vocabulary=300", "duplicates=2", "valid=0.2")]
    done = suite_command("data", "bert", "--from", str(made / "text"), "--to", "records", "--check", *options)
    assert done.returncode == 0, done.stderr
    assert "0 damaged files" in done.stdout and done.stdout.rstrip().endswith("task.next_sentence=true")
    folder = Path(done.stdout.split("data_dir=")[1].split()[0])
    shard = folder / "train-00000.npy"
    content = bytearray(shard.read_bytes())
    content[-50] ^= 1
    shard.write_bytes(bytes(content))
    again = suite_command("data", "bert", "--from", "records", "--check", *options[:3])
    assert again.returncode == 1 and f"cannot read {shard}: sha256" in again.stdout


def test_a_piece_that_the_vocabulary_lacks_is_found(made: Path, tmp_path: Path) -> None:
    import hashlib

    from suite.tasks.bert import check

    folder = copied(made, tmp_path / "records")
    assert check(str(folder)) == []
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = np.load(folder / "valid-00000.npy")
    rows["label"][0, 0] = 300
    np.save(folder / "valid-00000.npy", rows)
    manifest["splits"]["valid"][0]["sha256"] = hashlib.sha256((folder / "valid-00000.npy").read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert [fault.split(": ")[1] for fault in check(str(folder))] == ["holds piece 300 of a vocabulary of 300"]


def test_wikitext_from_end_to_end(shared_data: Path, tmp_path: Path) -> None:
    """Real text: 60 and 60 articles by their headings; prepared, and the network learns from it."""
    counts = [sum(1 for _ in text.documents(path)) for path in text.files(shared_data / "wikitext2")]
    assert counts == [60, 60]
    options = {"vocabulary": 1000, "duplicates": 1, "valid": 0.1, "sequence": 32, "predictions": 6}
    preparation.prepare(shared_data / "wikitext2", tmp_path / "records", **options)
    found = task("data=records", "next_sentence=true", "batch_size=32", data_dir=tmp_path / "records")
    assert found.architecture.vocabulary == 1000 and found.data.samples["valid"] > 100
    losses = engines.advance(engine("torch", found, "adamw", hyper={"lr": 0.01}), range(30))
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backend", engines.BACKENDS)
def test_the_default_optimizer_reaches_the_last_target(suite_command: Any, backend: str, seed: int) -> None:
    words = ("+task=bert", f"backend={backend}", f"seed={seed}", "track=none", "threads=1", "require=target")
    assert suite_command(*words, timeout=900).returncode == 0
