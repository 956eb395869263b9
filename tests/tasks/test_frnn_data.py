"""FRNN's shots: the published preprocessing, three formats of files, damaged ones, and who trains on which machine."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import write_shots

from suite.contract import Data, UserError
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks import frnn
from suite.tasks.frnn import archive, imas, shots, simulated
from suite.tasks.frnn.raw import Entry, Series, Unusable, resample_shot
from suite.tasks.frnn.shots import Channels, Shots

TWO = Channels(("ip", "lm"), (), 4)


class Fixed:
    """A reader of signals given here."""

    shifted = False

    def __init__(self, **signals: Any):
        self.signals = {
            name: (np.asarray(time, float), np.asarray(values, float)) for name, (time, values) in signals.items()
        }

    def read(self, entry: Entry, name: str, *, profile: bool) -> Series:
        time, values = self.signals[name]
        if profile:
            return Series(time, values[:, 1], values[:, 0], f"{name}.txt")
        return Series(time, values[:, None], None, f"{name}.txt")


def grid(
    disruption: float | None = None, *, machine: str = "here", channels: Channels = TWO, **signals: Any
) -> np.ndarray:
    entry = Entry(machine, 7, disruption, "list.txt:3")
    return resample_shot(Fixed(**signals), entry, channels, dt=0.1, shortest=0)


# ------------------------------------------------------------------------------------------- preprocessing
def test_the_last_value_at_or_before_each_step() -> None:
    """From the last start to the first end; nothing is interpolated, and nothing comes from later."""
    found = grid(ip=([0, 0.25, 0.5, 1], [1, 2, 3, 4]), lm=([0.2, 0.8], [5, 6]))
    assert np.array_equal(found, np.float32([[1, 5], [2, 5], [2, 5], [3, 5], [3, 5], [3, 5]]))


def test_a_sample_at_a_grid_point_belongs_to_it_however_it_is_rounded() -> None:
    time = 0.1 * np.arange(40)
    above = np.concatenate([[0], time[1:] + 1e-9])
    found = grid(ip=(time, np.arange(40) + 1), lm=(above, np.arange(40) + 1))
    assert np.array_equal(found[:, 0], np.arange(39) + 1) and np.array_equal(found[:, 0], found[:, 1])


def test_samples_out_of_order_are_sorted() -> None:
    assert np.array_equal(grid(ip=([0.2, 0, 0.1], [3, 1, 2]), lm=([0, 0.2], [1, 1]))[:, 0], [1, 2])


def test_causal_shifts_delay_a_signal() -> None:
    """DIII-D's q95 arrives 10 ms after its moment: 0.1 of these steps."""
    channels = Channels(("q95",), (), 4)
    assert grid(machine="d3d", channels=channels, q95=([0, 0.1, 0.2], [1, 2, 3])).shape == (2, 1)
    entry, signals = Entry("d3d", 7, None, ""), Fixed(q95=([0, 0.1, 0.2], [1, 2, 3]))
    signals.signals["lm"] = np.array([0.0, 0.2]), np.array([1.0, 1.0])
    late = resample_shot(signals, entry, Channels(("q95", "lm"), (), 4), dt=0.01, shortest=0)
    signals.shifted = True
    prompt = resample_shot(signals, entry, Channels(("q95", "lm"), (), 4), dt=0.01, shortest=0)
    assert np.flatnonzero(np.diff(prompt[:, 0]))[0] == 9 and len(late) == len(prompt) - 1
    assert np.flatnonzero(np.diff(late[:, 0]))[0] == 9  # the shot starts 10 ms later as well


def test_a_disruptive_shot_ends_at_its_disruption() -> None:
    signals = {"ip": ([0, 0.5, 1], [1, 1, 1]), "lm": ([0, 0.5, 1], [1, 2, 3])}
    assert len(grid(0.7, **signals)) == 7
    with pytest.raises(Unusable, match=r"ip\.txt: ip ends 0\.2 s too early before the disruption \(list\.txt:3\)"):
        grid(1.2, **signals)


def test_a_signal_may_end_before_the_disruption_by_its_tolerance() -> None:
    channels, signals = Channels(("q95",), (), 4), {"q95": ([0, 0.5, 1], [1, 2, 3])}
    assert grid(1.02, machine="d3d", channels=channels, **signals)[-1] == 3  # 20 ms, after a shift of 10 ms
    with pytest.raises(Unusable, match="q95 ends"):
        grid(1.04, machine="d3d", channels=channels, **signals)


def test_a_shot_lasts_as_long_as_its_current() -> None:
    """DIII-D: from 0.2 MA until 50 ms after."""
    channels = Channels(("ip",), (), 4)
    current = np.array([0.1, 0.3, -0.5, 0.3, 0.1, 0.1, 0.1, 0.1])
    assert np.allclose(grid(machine="d3d", channels=channels, ip=(0.04 * np.arange(8), current))[:, 0], [0.3, 0.3][:1])
    with pytest.raises(Unusable, match=r"ip never reaches 0\.2"):
        grid(machine="d3d", channels=channels, ip=([0, 1], [0.1, 0.1]))


def test_profiles_are_interpolated_along_the_radius_and_constant_outside() -> None:
    radius, value = [[0.5, 0.25, 0.75]] * 2, [[2.0, 1.0, 3.0]] * 2
    found = grid(channels=Channels((), ("te",), 5), te=([0, 0.1], np.stack([radius, value], 1)))
    assert np.allclose(found[0], [1, 1, 2, 3, 3])


@pytest.mark.parametrize(
    "signal, words",
    [
        (([0], [1]), "has 1 samples"),
        (([0, 1], [0, 0]), "always zero"),
        (([0, 1], [1, np.nan]), "contains NaN, first in sample 2"),
        (([5, 6], [1, 1]), "shot 7 has 0 steps, but needs 1"),
    ],
    ids=["single", "zero", "nan", "apart"],
)
def test_rules_that_leave_a_shot_out(signal: Any, words: str) -> None:
    with pytest.raises(Unusable, match=words):
        grid(ip=([0, 1], [1, 1]), lm=signal)


def test_targets_in_logarithms_of_the_time_left() -> None:
    hinge = shots.compute_targets("hinge", 5, True, dt=0.1, warning=0.25)
    assert list(hinge) == [-1, -1, 1, 1, 1] and set(shots.compute_targets("hinge", 5, False, dt=0.1, warning=0.25)) == {
        -1.0
    }
    ttd = shots.compute_targets("ttd", 5, True, dt=0.1, warning=0.25)
    assert np.allclose(ttd, -np.log10([0.25, 0.25, 0.21, 0.11, 0.01]))
    assert np.allclose(shots.compute_targets("ttd", 5, False, dt=0.1, warning=0.25), -np.log10(0.25))


# ----------------------------------------------------------------------------------------------- protocols
class Two:
    """Six shots of each of two machines, of two signals and a profile; values are the machine's own scale."""

    channels, dt, train_share = Channels(("q95", "dens"), ("te",), 2), 0.1, 0.5
    machines = "one", "other"

    def shots(self, machine: str) -> Shots:
        values = np.random.default_rng(len(machine)).normal(size=(60, 4)).astype(np.float32)
        values *= np.repeat([1.0, 2.0, 3.0, 4.0, 5.0, 60.0], 10)[:, None] * (1 if machine == "one" else 100)
        return Shots(machine, values, np.arange(0, 61, 10), np.array([0, 1] * 3, bool), np.arange(6))

    def data(self) -> Data:
        return Data("generated", "two", "1", {"train": 12})


def test_scales_are_medians_over_the_training_shots_of_each_machine() -> None:
    source = Two()
    for protocol, counts in (("single", (3, 3)), ("cross", (6, 6)), ("glimpse", (8, 4))):
        splits = shots.split_shots(source, protocol, glimpse=2)
        assert (len(splits["train"]), len(splits["valid"])) == counts
        wheres = {name: {(part.machine, row) for part, row in split._places} for name, split in splits.items()}
        assert not wheres["train"] & wheres["valid"]
        scales, machines = splits["valid"]._scales, {"single": 1, "cross": 2, "glimpse": 2}[protocol]
        assert len(scales) == machines
        for machine, scale in scales.items():
            rows = [row for name, row in wheres["train"] if name == machine] or range(
                6
            )  # cross: the test machine's own
            shown = [source.shots(machine).shot(row) for row in rows]
            assert scale[0] == 1  # q95 keeps its unit
            assert np.isclose(scale[1], np.median([shot[:, 1].std() for shot in shown]))
            assert np.allclose(scale[2:], np.median([shot[:, 2:].std() for shot in shown]))  # one for all radii


def test_scaled_values_are_clipped_and_the_density_is_not_negative() -> None:
    class Spike(Two):
        def shots(self, machine: str) -> Shots:
            found = super().shots(machine)
            found.values[::10] = 1e6
            return Shots(machine, found.values, found.starts, found.disrupted, found.numbers)

    scales = {"one": np.float32([1, 1, 1, 1])}
    split = shots.Split([(Spike().shots("one"), np.arange(6))], scales, channels=Two.channels)
    assert split.read(0).max() == 100 and split.read(0)[:, 1].min() == 0 > split.read(0)[:, 2].min()
    assert np.array_equal(split.read(2)[3:5], split.read(2, slice(3, 5)))


def test_too_few_machines_or_shots() -> None:
    source = Two()
    source.machines = ("one",)
    with pytest.raises(UserError, match=r"task\.protocol=cross needs 2 lists of shots"):
        shots.split_shots(source, "cross", glimpse=0)
    source.machines, source.train_share = ("one",), 1.0
    with pytest.raises(UserError, match="6 training and 0 test shots"):
        shots.check_splits(shots.split_shots(source, "single", glimpse=0))


# --------------------------------------------------------------------------------------------------- files
@pytest.fixture(scope="module")
def simulation() -> Any:
    """Twelve simulated shots, and their channels."""
    source = simulated.make(machines=["near"], shots=12, radii=8, train_share=0.5)
    return source.shots("near"), source.channels


@pytest.fixture(scope="module")
def unchanged(simulation: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated shots in plasma-python's layout."""
    folder = tmp_path_factory.mktemp("shots") / "data"
    write_shots(folder, "near", *simulation, dt=0.005)
    return folder


@pytest.fixture
def written(unchanged: Path, tmp_path: Path) -> Path:
    return shutil.copytree(unchanged, tmp_path / "data")


def opened(folder: Path, **options: Any) -> archive.Archive:
    options = {"radii": 8, "dt": 0.005, "shortest": 0, "cache_dir": str(folder.parent / "cache")} | options
    return archive.make(str(folder), **options)


def find_faults(folder: Path) -> list[str]:
    """Of the signals that are damaged here: reading all sixteen takes five times as long."""
    return opened(folder, signals=["lm"], profiles=["etemp_profile"]).faults()


def test_written_shots_are_read_back_as_the_same_numbers(written: Path, simulation: Any) -> None:
    original, _ = simulation
    for _ in range(2):  # the second time from the cache
        found = opened(written).shots("near")
        assert isinstance(found.values, np.memmap) and sorted(found.numbers) == list(range(12))
        assert np.array_equal(found.disrupted, original.disrupted[found.numbers])
        for row, number in enumerate(found.numbers):
            assert np.array_equal(found.shot(row), original.shot(number))


def test_a_changed_file_is_read_again(written: Path) -> None:
    before = opened(written).shots("near").values.copy()
    path = written / "signal_data" / "near" / "lm" / "0.txt"
    rows = np.loadtxt(path)
    np.savetxt(path, rows * [1, 3], fmt="%.9g")
    assert not np.array_equal(opened(written).shots("near").values, before)


def empty(path: Path) -> None:
    path.write_text("")


def nan(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[4] = "0.02 nan"
    path.write_text("\n".join(lines) + "\n")


def wide(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[2] += " 7"
    path.write_text("\n".join(lines) + "\n")


def word(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[9] = "0.045 high"
    path.write_text("\n".join(lines) + "\n")


def foreign(path: Path) -> None:
    path.write_bytes(b"0.0 1\n0.005 \xe9\n")


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (empty, r"lm/3\.txt: empty"),
    (Path.unlink, r"lm/3\.txt: no such file"),
    (nan, r"lm/3\.txt:5: NaN"),
    (wide, r"lm/3\.txt:3: 3 columns, but the lines before have 2"),
    (word, r"lm/3\.txt:10: not a number"),
    (foreign, r"lm/3\.txt:2: not a number"),
    (lambda path: path.write_text("-1.0\n") and None, r"lm/3\.txt: no data \(-1\)"),
    (lambda path: path.write_text("0 0\n1 0\n") and None, r"lm/3\.txt: lm is always zero"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "damage, words", DAMAGE, ids=["empty", "missing", "nan", "columns", "word", "bytes", "none", "zero"]
)
def test_a_damaged_shot_is_named_and_counted(written: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(written / "signal_data" / "near" / "lm" / "3.txt")
    overrides = [
        *("task=frnn", "task.data=archive", f"data_dir={written}", "task.targets=[2.0]", "task.length=16"),
        *("task.batch_size=2", "task.eval_batch_size=2", "task.sources.archive.options.radii=16"),
        *("task.sources.archive.options.dt=0.005", "task.sources.archive.options.shortest=0"),
        f"task.sources.archive.options.cache_dir={written.parent / 'cache'}",
    ]
    stopped = make_task(configure.resolve(overrides))
    with pytest.raises(UserError, match=rf"{words}.*1 of the listed shots cannot be used.*task\.on_error=skip"):
        stopped.batch("train", 0, 0)
    skipped = make_task(configure.resolve([*overrides, "task.on_error=skip"]))
    (fault,) = skipped.data.skipped  # before any batch: the result's record is made first
    assert np.isfinite(skipped.batch("train", 0, 0)["signals"]).all()
    assert fault in skipped.data.losses()
    assert re.search(words, fault)
    assert skipped.data.kind == "real" and sum(len(split) for split in skipped.splits.values()) == 11


def test_a_profile_with_an_odd_number_of_lines(written: Path) -> None:
    path = written / "signal_data" / "near" / "etemp_profile" / "5.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    assert [
        f"etemp_profile/5.txt:{len(lines) - 1}: an odd number of lines" in fault for fault in find_faults(written)
    ] == [True]


@pytest.mark.parametrize("line", ["12", "12 x", "a 1.0", "12 nan", "12 -2.0", "12 -1.0 0"])
def test_a_damaged_list_is_named(written: Path, line: str) -> None:
    path = written / "shot_lists" / "near_clear.txt"
    path.write_text(f"\n{line}\n")
    with pytest.raises(UserError, match=r"near_clear\.txt:2: must contain a shot's number"):
        opened(written)


PLACES = pytest.mark.parametrize("place", [0, 1, -1], ids=["first", "middle", "last"])


def change_line(path: Path, place: int, change: Callable[[str], str]) -> int:
    """Replace one line by what `change` makes of it; return its number."""
    lines = path.read_text().splitlines(keepends=True)
    lines[place] = change(lines[place])
    path.write_text("".join(lines))
    return place % len(lines) + 1


@pytest.mark.quick
@PLACES
def test_a_shot_that_a_list_has_twice_or_not_is_found(written: Path, place: int) -> None:
    """Also twice with and without a disruption. One that is gone is seen by the number of shots alone."""
    clear, disrupted = (written / "shot_lists" / f"near_{kind}.txt" for kind in ("clear", "disrupt"))
    before = clear.read_text()
    number = change_line(clear, place, lambda line: line + line)
    found = rf"near_clear\.txt:{number + 1}: shot \d+ is in the list twice, first in .*near_clear\.txt:{number};"
    with pytest.raises(UserError, match=found):
        opened(written)
    clear.write_text(before)
    shot = before.splitlines()[place].split()[0]
    number = change_line(disrupted, place, lambda line: f"{line}{shot} 0.1\n")
    with pytest.raises(UserError, match=rf"near_disrupt\.txt:{number + 1}: shot {shot} is in the list twice, .*clear"):
        opened(written)
    change_line(disrupted, number, lambda line: "")
    change_line(clear, place, lambda line: "")
    assert opened(written).data().samples == {"near": 11} and len(opened(written).shots("near")) == 11


@pytest.mark.quick
def test_a_shot_of_two_lists_is_not_used_for_training_and_test(written: Path) -> None:
    shutil.copy(written / "shot_lists" / "near_clear.txt", written / "shot_lists" / "near_b_clear.txt")
    source = opened(written)
    assert source.machines == ("near_b", "near")
    with pytest.raises(UserError, match=r"shot \d+ is in both lists, near_b and near;"):
        shots.split_shots(source, "cross", glimpse=0)


@pytest.mark.quick
@PLACES
@pytest.mark.parametrize(
    "change, words",
    [
        (lambda line: "\n" + line, r"txt:{n}: an empty line"),
        (lambda line: "\n", r"txt:{n}: an empty line"),
        (lambda line: "# " + line, r"txt:{n}: not a number"),
        (lambda line: line.replace("\n", " # good\n"), r"txt:{n}: not a number"),
        (lambda line: line.replace("\n", " 1\n"), "columns, but the lines before have"),
        (lambda line: line.split()[0] + "\n", "columns, but the lines before have"),
    ],
)
@pytest.mark.parametrize("signal", ["lm", "etemp_profile"])
def test_a_broken_sample_is_named(
    written: Path, place: int, change: Callable[[str], str], words: str, signal: str
) -> None:
    """A sample of a 0D signal that is gone or there twice is legal: times are neither even nor counted."""
    path = written / "signal_data" / "near" / signal / "3.txt"
    number = change_line(path, place, change)
    (fault,) = find_faults(written)
    assert f"{signal}/3.txt" in fault and re.search(words.format(n=number), fault), fault


@pytest.mark.quick
@PLACES
def test_a_profile_whose_radii_and_values_have_other_times_is_refused(written: Path, place: int) -> None:
    path = written / "signal_data" / "near" / "etemp_profile" / "3.txt"
    half = len(path.read_text().splitlines()) // 2
    for change in (lambda line: "", lambda line: line + line):
        before = path.read_text()
        change_line(path, place, change)
        assert "an odd number of lines" in find_faults(written)[0]
        change_line(path, half // 2, change)  # of the radii; both halves now seem to be whole
        found = find_faults(written)
        assert "differs from that of the radii, line" in found[0]
        path.write_text(before)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["shot_lists/near_clear.txt", "signal_data/near/lm/3.txt"])
def test_a_file_that_is_cut_off_in_its_last_line_is_named(written: Path, name: str) -> None:
    path = written / name
    lines = len(path.read_text().splitlines())
    path.write_text(path.read_text()[:-2])
    with pytest.raises((UserError, AssertionError), match=rf"{path.name}:{lines}: the file ends within this line"):
        raise AssertionError(find_faults(written)[0])


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no signal_data/"):
        archive.make(str(tmp_path))
    with pytest.raises(UserError, match="data_dir=DIRECTORY"):
        archive.make(None)


def test_check_and_census(written: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archive, "CACHE", tmp_path / "cache")
    assert sum(frnn.census(str(written))["near"].values()) == 12
    assert all("286" in fault or "287" in fault for fault in frnn.check(str(written)))  # too short for 1 ms steps


@pytest.mark.parametrize("variant, parameters", [("1d", 600_873), ("0d", 493_001)])
def test_the_published_size_without_any_data(variant: str, parameters: int) -> None:
    from suite.verbs.plan import describe_plan

    found = describe_plan(configure.resolve(["task=frnn", "scale=paper", f"task.variant={variant}"]))
    assert found["parameters"] == parameters and found["data"] == "DIII-D" and found["batch_size"] == 128


# ---------------------------------------------------------------------------------------------- real files
def test_a_real_shot_in_both_formats(shared_data: Path, tmp_path: Path) -> None:
    """VEST 40282: the text files were written from the IMAS ones, so both readers see the same shot."""
    folder = shared_data / "vest_shot"
    named = {"ip": "ip", "magnetics/flux_loop[5]/flux": "flux_loop_06"}
    options = {"dt": 4e-5, "shortest": 100, "radii": 5, "variant": "0d", "cache_dir": str(tmp_path / "cache")}
    in_text = archive.make(str(folder), signals=list(named.values()), **options)
    assert in_text.census() == {"vest": {"disruptive": 0, "clear": 1}}
    place = tmp_path / "data" / imas.FOLDER / "vest"
    place.mkdir(parents=True)
    (place / "40282").symlink_to(folder / "imas")
    shutil.copytree(folder / "shot_lists", tmp_path / "data" / "shot_lists")
    in_imas = archive.make(str(tmp_path / "data"), signals=list(named), **options)
    ours, theirs = in_text.shots("vest"), in_imas.shots("vest")
    assert in_text.faults() == in_imas.faults() == []
    assert ours.values.shape == theirs.values.shape == (1999, 2)
    assert np.allclose(ours.values, theirs.values, rtol=1e-6, atol=0.0)


def test_real_profiles(shared_data: Path, tmp_path: Path) -> None:
    folder, cache = shared_data / "vest_shot", str(tmp_path / "cache")
    found = archive.make(str(folder), signals=["ip"], radii=5, dt=1e-3, shortest=0, cache_dir=cache).shots("vest")
    lines = np.loadtxt(folder / "signal_data" / "vest" / "etemp_profile" / "40282.txt")
    assert found.values.shape == (9, 11)  # 9 ms of Thomson scattering; ip and two profiles of five points
    for step in range(9):
        assert np.allclose(
            found.values[step, 1:6], np.interp(np.linspace(0, 1, 5), lines[step, 1:], lines[10 + step, 1:])
        )
    assert archive.make(str(folder), signals=["lm"], cache_dir=cache).faults()[0].endswith("lm/40282.txt: no such file")
    entry = Entry("vest", 40282, None, "")
    place = tmp_path / imas.FOLDER / "vest"
    place.mkdir(parents=True)
    (place / "40282").symlink_to(folder / "imas")
    series = imas.Imas(tmp_path).read(entry, "etemp_profile", profile=True)
    assert series.radius is not None and series.values.shape == series.radius.shape == (2, 100)
    with pytest.raises(Unusable, match=r"magnetics\.h5: magnetics/nothing cannot be read"):
        imas.Imas(tmp_path).read(entry, "magnetics/nothing", profile=False)


# --------------------------------------------------------------------------------------------------- tables
HEADER = "discharge_ID,time,density,current,density_limit_phase\n"
COLUMNS = {"shot": "discharge_ID", "time": "time", "label": "density_limit_phase"}


def table(folder: Path, lines: str) -> archive.Archive:
    (folder / "cmod.csv").write_text(HEADER + lines)
    options = {"signals": ["density", "current"], "variant": "0d", "columns": COLUMNS, "dt": 0.01, "shortest": 0}
    return archive.make(str(folder), cache_dir=str(folder / "cache"), **options)


def test_a_long_table(tmp_path: Path) -> None:
    found = table(tmp_path, "5,0.00,1,2,0\n5,0.01,3,4,0\n5,0.02,5,6,1\n9,0.5,7,8,0\n9,0.51,9,8,0\n9,0.52,1,8,0\n")
    read = found.shots("cmod")
    assert list(read.numbers) == [5, 9] and list(read.disrupted) == [True, False]
    assert np.array_equal(read.values, [[1, 2], [3, 4], [7, 8], [9, 8]])


@pytest.mark.parametrize(
    "lines, words",
    [
        ("5,0.0,1,2,0\n5,0.1,1,2\n", r"cmod\.csv:3: 4 columns, but the header has 5"),
        ("5,0.0,1,2,0\n5,now,1,2,0\n", r"cmod\.csv:3: could not convert"),
        ("5,0.0,1,2,0\n6,0.0,1,2,0\n5,0.1,1,2,0\n", r"cmod\.csv:4: shot 5 continues here"),
        ("5,0.1,1,2,0\n5,0.0,1,2,0\n", r"cmod\.csv:3: the time 0 of shot 5 does not follow 0\.1"),
        ("5,nan,1,2,0\n", r"cmod\.csv:2: the time nan or the label 0 is no number"),
        ("5,0.0,1,2,nan\n", r"cmod\.csv:2: the time 0\.0 or the label nan is no number"),
        ("", r"cmod\.csv: contains no shot"),
    ],
    ids=["columns", "time", "order", "back", "nan", "label", "none"],
)
def test_a_damaged_table_is_named(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        table(tmp_path, lines)


@pytest.mark.quick
@PLACES
@pytest.mark.parametrize(
    "change, words",
    [
        (lambda line: line + line, r"csv:{next}: the time .* does not follow .* in the line before"),
        (lambda line: "\n" + line, r"csv:{n}: 1 columns, but the header has 5"),
        (lambda line: line.replace(",", ";"), r"csv:{n}: 1 columns, but the header has 5"),
        (lambda line: line.replace("\n", ",0\n"), r"csv:{n}: 6 columns, but the header has 5"),
        (lambda line: line.replace("5,", "6,", 1), r"csv:\d: shot 5 continues here|csv:5: shot 6 continues|0 shots"),
        (lambda line: "", "0 shots"),
    ],
    ids=["twice", "blank", "separator", "column", "other", "gone"],
)
def test_a_line_of_a_table_that_is_doubled_or_broken_is_named(
    tmp_path: Path, place: int, change: Callable[[str], str], words: str
) -> None:
    """One that is gone, or has the number of the next shot, leaves a legal table: times need not be even."""
    path = tmp_path / "lines"
    path.write_text("5,0.0,1,2,0\n5,0.1,1,2,0\n5,0.2,1,2,0\n")
    number = change_line(path, place, change) + 1
    found = words.format(n=number, next=number + 1)
    if "0 shots" in found and (place == -1 or change("5,\n") == ""):
        assert len(table(tmp_path, path.read_text()).data().samples) == 1
        return
    if "continues" in found and place == 0:
        assert table(tmp_path, path.read_text()).data().samples == {"cmod": 2}
        return
    with pytest.raises(UserError, match=found):
        table(tmp_path, path.read_text())


@pytest.mark.quick
def test_a_table_that_is_cut_off_or_has_a_column_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cmod\.csv:3: the file ends within this line"):
        table(tmp_path, "5,0.0,1,2,0\n5,0.1,1,2,0")
    (tmp_path / "cmod.csv").write_text(HEADER.replace("current", "density") + "5,0.0,1,2,0\n")
    with pytest.raises(UserError, match=r"cmod\.csv:1: two columns are called density"):
        archive.make(str(tmp_path), signals=["density"], variant="0d", columns=COLUMNS)


def test_damaged_values_in_a_table_leave_their_shot_out(tmp_path: Path) -> None:
    found = table(tmp_path, "5,0.0,1,2,0\n5,0.01,high,2,0\n6,0.0,1,,0\n6,0.01,1,2,0\n7,0.0,1,2,0\n7,0.01,1,2,0\n")
    first, second = found.faults()
    assert "cmod.csv:3: could not convert string to float: 'high'" in first
    assert "cmod.csv:4: current contains NaN, first in sample 1" in second and list(found.shots("cmod").numbers) == [7]
