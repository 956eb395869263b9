"""Images for each second of one core: photographs decoded each time, and from shards of pixels."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import write_jpeg

from suite.tasks._data.decoding import prepare
from suite.tasks._data.folder import Folder
from suite.tasks._data.shards import Shards

from .measure import ONCE, check_limit, interleaved, ratio

pytestmark = pytest.mark.bench
ROUNDS, IMAGES, SIDE = 9, 8 if ONCE else 96, 448  # pixels of a photograph, about as many as ImageNet's mean
# options of the recipe, of the preparation, and the least ratio
CASES: dict[str, tuple[dict[str, Any], dict[str, int], float]] = {
    "caffenet": ({"size": 227, "warp": 256, "mean": (123, 117, 104), "std": (1, 1, 1)}, {"warp": 256}, 10.0),
    "resnet50": ({"size": 224}, {}, 1.5),
    "resnet50 side=256": ({"size": 224}, {"side": 256}, 2.0),
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("photographs")
    write_jpeg(directory, train=IMAGES, valid=1, size=SIDE)
    return directory


@pytest.mark.parametrize("name", CASES)
def test_images_from_shards(name: str, photographs: Path, tmp_path: Path, benchmark: Any, capsys: Any) -> None:
    options, stored, least = CASES[name]
    prepare(photographs, tmp_path / "made", **stored)
    sources = {"files": Folder(photographs, **options), "shards": Shards(tmp_path / "made", **options)}
    rows = np.arange(IMAGES)
    calls = {
        kind: lambda source=source: source.read("train", rows, seed=0, numbers=rows) for kind, source in sources.items()
    }
    seconds = interleaved(calls, ROUNDS, clock=time.process_time)
    found = ratio(seconds, "files", "shards")
    benchmark.pedantic(calls["shards"], rounds=1)
    benchmark.extra_info |= {"ratio": found["median"]}
    each = {kind: IMAGES / np.median(values) for kind, values in seconds.items()}
    with capsys.disabled():
        print(
            f"\n{name} · {each['files']:,.0f} images a core-second from files, {each['shards']:,.0f} from shards: "
            f"{found['median']:.1f} x ({found['least']:.1f} to {found['most']:.1f})"
        )
    check_limit(found["median"] >= least, found)
