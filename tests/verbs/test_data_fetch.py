"""`suite data TASK --fetch`, from a server on this machine: what is kept, continued and refused."""

import hashlib
import shlex
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from idxes import write_set
from tiny_runs import Call

from suite import load
from suite.contract import PublicData, PublicFile
from suite.launch import download, public
from suite.launch.job import make_task
from suite.settings import configure
from suite.tasks import bert, cifar10, resnet50
from suite.tasks._data.public import CIFAR_10, FASHION_MNIST, WIKITEXT_2
from suite.tasks.bert import text as bert_text
from suite.tasks.cifar10 import binary

IMAGES = "train-images-idx3-ubyte.gz"


@dataclass
class Server:
    """A server of files, and how it misbehaves.

    Attributes:
        files: contents by path.
        url: of its root.
        asked: path and first byte of each request; 0 without a range.
        cut: a file ends after so many bytes of an answer.
        ranges: whether it understands ranges.
    """

    files: dict[str, bytes]
    url: str = ""
    asked: list[tuple[str, int]] = field(default_factory=list)
    cut: int | None = None
    ranges: bool = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    state = Server({})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            state.asked.append((self.path, first))
            if (content := state.files.get(self.path)) is None:
                self.send_error(404)
                return
            partial = state.ranges and first > 0
            self.send_response(206 if partial else 200)
            if partial:
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            body = content[first:] if partial else content
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{running.server_port}"
        yield state
        running.shutdown()


def describe(content: bytes, name: str, **members: str) -> PublicFile:
    return PublicFile(name, len(content), hashlib.sha256(content).hexdigest(), members)


@pytest.fixture
def fashion(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PublicData:
    """A small set in the place of Fashion-MNIST, on the server, and nothing of it on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_set(tmp_path / "served", labelled=True, train=30, valid=10)
    contents = {path.name: path.read_bytes() for path in (tmp_path / "served").iterdir()}
    server.files |= {f"/fashion/{name}": content for name, content in contents.items()}
    files = tuple(describe(contents[file.name], file.name) for file in FASHION_MNIST.files)
    small = replace(FASHION_MNIST, base=f"{server.url}/fashion/", files=files, package="")
    monkeypatch.setitem(resnet50.PUBLIC, "fashion", small)
    return small


def test_a_fetched_set_is_listed_and_found_by_a_run(fashion: PublicData, server: Server, suite: Call) -> None:
    assert "use `suite data resnet50 --fetch`" in suite("data", "resnet50", "task.data=fashion")[1]
    code, text = suite("data", "resnet50", "--fetch")
    size = sum(file.bytes for file in fashion.files)
    assert code == 0 and text.splitlines() == [
        f"Fashion-MNIST: {size:,} bytes to {fashion.folder}; licence: MIT; {FASHION_MNIST.page}",
        "next: suite +task=resnet50 task.data=fashion",
    ]
    for file in fashion.files:
        assert (fashion.folder / file.name).read_bytes() == server.files[f"/fashion/{file.name}"]
    assert len(list(fashion.folder.iterdir())) == 4
    overrides = ["task=resnet50", "task.data=fashion", "task.sources.fashion.options.valid=10"]
    run = configure.resolve(overrides)
    task = make_task(run)
    assert task.data.samples == {"train": 30, "valid": 10} and task.batch("train", 0, 0)["image"].shape[1:] == (
        3,
        32,
        32,
    )
    assert public.find_folder(run) == fashion.folder
    code, text = suite("data", "resnet50", *overrides[1:])
    assert code == 0 and f"real, in {fashion.folder}   idx-images: 30 train, 10 valid" in text
    server.files.clear()
    assert suite("data", "resnet50", "--fetch")[0] == 0, "nothing is downloaded again"


def test_another_folder_and_another_server(fashion: PublicData, server: Server, suite: Call, tmp_path: Path) -> None:
    server.files = {name.replace("/fashion/", "/a/mirror/"): content for name, content in server.files.items()}
    code, text = suite("data", "resnet50", "--fetch", "--to", "my images", "--mirror", f"{server.url}/a/mirror")
    assert code == 0, text
    last = text.splitlines()[-1]
    assert last == f"next: suite +task=resnet50 task.data=fashion data_dir='{tmp_path / 'my images'}'"
    run = configure.resolve([*shlex.split(last)[2:], "task.sources.fashion.options.valid=10"])
    assert make_task(run).data.samples["train"] == 30 and not fashion.folder.exists()


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_continues(
    ranges: bool, fashion: PublicData, server: Server, suite: Call, tmp_path: Path
) -> None:
    server.cut, server.ranges, size = 5000, ranges, fashion.files[0].bytes
    code, text = suite("data", "resnet50", "--fetch")
    assert code == 2 and f"{IMAGES}: ended after 5,000 of {size:,} bytes; use the same command again" in text
    assert [path.name for path in fashion.folder.iterdir()] == [f"{IMAGES}.part"]
    server.cut = None
    assert suite("data", "resnet50", "--fetch")[0] == 0
    assert server.asked[:2] == [(f"/fashion/{IMAGES}", 0), (f"/fashion/{IMAGES}", 5000)]
    assert (fashion.folder / IMAGES).read_bytes() == server.files[f"/fashion/{IMAGES}"]


def test_a_whole_part_needs_no_server_and_a_longer_one_is_dropped(
    fashion: PublicData, server: Server, suite: Call
) -> None:
    fashion.folder.mkdir(parents=True)
    part, content = fashion.folder / f"{IMAGES}.part", server.files[f"/fashion/{IMAGES}"]
    part.write_bytes(content)
    assert suite("data", "resnet50", "--fetch")[0] == 0 and (f"/fashion/{IMAGES}", 0) not in server.asked
    (fashion.folder / IMAGES).unlink()
    part.write_bytes(content + b"more")
    assert suite("data", "resnet50", "--fetch")[0] == 0 and not part.exists()
    assert (fashion.folder / IMAGES).read_bytes() == content


def test_other_contents_are_refused_and_not_kept(fashion: PublicData, server: Server, suite: Call) -> None:
    path = f"/fashion/{IMAGES}"
    content = server.files[path]
    expected = fashion.files[0].sha256
    server.files[path] = other = content[:-1] + bytes([content[-1] ^ 1])
    code, text = suite("data", "resnet50", "--fetch")
    got = hashlib.sha256(other).hexdigest()
    assert code == 2 and f"{IMAGES}: its sha256 is {got} instead of {expected}; it was deleted; use the same" in text
    assert not list(fashion.folder.iterdir())
    server.files[path] = content + b"more"
    code, text = suite("data", "resnet50", "--fetch")
    assert code == 2 and f"the server's file has {len(content) + 4:,} bytes, the published one {len(content):,}" in text
    assert not list(fashion.folder.iterdir())
    del server.files[path]
    fashion.folder.rmdir()
    code, text = suite("data", "resnet50", "--fetch")
    assert code == 2 and f"{IMAGES}: the server answers 404 Not Found; use another with --mirror URL" in text
    assert not fashion.folder.exists()
    fashion.folder.mkdir()
    (fashion.folder / IMAGES).write_bytes(b"mine")
    code, text = suite("data", "resnet50", "--fetch")
    assert code == 2 and f"{fashion.folder / IMAGES}: not the published file; move it away" in text
    assert (fashion.folder / IMAGES).read_bytes() == b"mine"


@pytest.mark.usefixtures("fashion")
def test_a_server_that_is_not_there_or_silent_is_named(suite: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(download, "SILENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code, text = suite("data", "resnet50", "--fetch", "--mirror", url)
    assert code == 2 and f"{url}/{IMAGES}: timed out; use the same command again" in text
    code, text = suite("data", "resnet50", "--fetch", "--mirror", url)
    assert code == 2 and "Connection refused; use the same command again, or another server" in text
    for word in ("ftp://127.0.0.1/x", "/some/folder"):
        code, text = suite("data", "resnet50", "--fetch", "--mirror", word)
        assert code == 2 and f"{word}: not a URL of a server" in text


def test_archives_are_unpacked(server: Server, suite: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10's batches are then found by a run, and WikiText's files are text that can be prepared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module, key, data in ((cifar10, "cifar10", CIFAR_10), (bert, "wikitext", WIKITEXT_2)):
        (file,) = data.files
        for member in file.members:
            (tmp_path / member).parent.mkdir(exist_ok=True)
            (tmp_path / member).write_text(f" = Title = \n\n {member} .\n")
        archive = tmp_path / file.name
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive, "w") as packed:
                for member in file.members:
                    packed.write(tmp_path / member, member)
        else:
            with tarfile.open(archive, "w:gz") as packed:
                for member in file.members:
                    packed.add(tmp_path / member, member)
        content = archive.read_bytes()
        server.files[f"/{file.name}"] = content
        small = replace(data, base=server.url, files=(describe(content, file.name, **file.members),))
        monkeypatch.setitem(module.PUBLIC, key, small)
    code, text = suite("data", "cifar10", "--fetch")
    assert code == 0 and "next: suite +task=cifar10 task.data=cifar10\n" in text, text
    assert CIFAR_10.find(None) == CIFAR_10.folder
    assert {path.name for path in binary.find_files(None)["valid"]} == {"test_batch"}
    code, text = suite("data", "bert", "--fetch")
    assert code == 0 and text.splitlines()[-1] == f"next: suite data bert --from {WIKITEXT_2.folder} --to DIR"
    assert [path.name for path in bert_text.find_files(WIKITEXT_2.folder)] == [
        *("wiki.test.txt", "wiki.train.txt", "wiki.valid.txt")
    ]
    assert len(list(CIFAR_10.folder.iterdir())) == 2, "the archive and its folder"


def test_words_that_do_not_fit_are_named(suite: Call, capfd: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (("frnn", "--fetch"), "frnn: cannot fetch its data; none of its data is public"),
        (("autoencoder", "--fetch", "task.data=curves"), "task.data=curves; set task.data=mnist|fashion"),
        (("autoencoder", "--fetch", "task.loss=squared"), "cannot fetch task.loss=squared; set task.data="),
        (
            ("autoencoder", "--fetch", "--to", "x"),
            "--to and --mirror are for one data set; set task.data=mnist|fashion",
        ),
    ):
        code, text = suite("data", *words)
        assert code == 2 and message in text, text
    for words in (("--fetch", "--check"), ("--fetch", "--from", "x"), ("--mirror", "http://x")):
        with pytest.raises(SystemExit):
            suite("data", "resnet50", *words)
        assert "--fetch" in capfd.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize("task", load.find_members("tasks"))
def test_declarations(task: str) -> None:
    offered = public.list_public(load.load_member(f"suite.tasks.{task}"))
    for data in offered.values():
        assert data.base.startswith("https://") and data.base.endswith("/") and data.licence
        assert data.command.startswith("suite data ") and " --fetch" in data.command
        assert all(len(file.sha256) == 64 and file.bytes > 0 for file in data.files)
