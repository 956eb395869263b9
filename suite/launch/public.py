"""A task's public data: where it lies on this machine, and how to get it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from suite.contract import OffersPublic, PublicData, UserError
from suite.launch import download
from suite.nodes import Part
from suite.settings import configure
from suite.settings.overrides import render_command
from suite.settings.run import AnyRun


def list_public(module: ModuleType) -> Mapping[str, PublicData]:
    """Return the public data of a task's module; see `OffersPublic`."""
    return module.PUBLIC if isinstance(module, OffersPublic) else {}


def find_folder(run: AnyRun) -> Path | None:
    """Return the directory that the run reads: `data_dir`, or where its public data lies; None if there is none.

    Raises:
        UserError: if its public data is not here; it says how to get it.
    """
    public = list_public(run.task.member).get(run.task.options().get("data", ""))
    if public:
        return public.find(run.data_dir)
    return None if run.data_dir is None else Path(run.data_dir)


def fetch_data(
    task: str, overrides: Sequence[str], *, target: Path | None, mirror: str | None, directory: Path | None
) -> Iterator[str]:
    """Download the task's public data, or the one that `task.data=` names.

    Args:
        task: the task's name.
        overrides: `task.data=NAME`, or nothing.
        target: the folder; None for the one in which runs look.
        mirror: URL of another server's folder with the files.
        directory: the user's own configuration groups.

    Yields:
        Lines to print: each data set, before its download, and then the command that uses it.

    Raises:
        UserError: if the task has no such data, a folder or server is given for several sets, or a download fails.
    """
    node = configure.compose_nodes([f"task={task}"], directory)["task"]
    public = list_public(Part(module=node["module"]).member)
    names = [word.removeprefix("task.data=") for word in overrides] or list(public)
    if not names or not public.keys() >= set(names):
        choices = f"set task.data={'|'.join(public)}" if public else "none of its data is public"
        raise UserError(f"{task}: cannot fetch {', '.join(overrides) or 'its data'}; {choices}")
    if len(names) > 1 and (target or mirror):
        raise UserError(f"{task}: --to and --mirror are for one data set; set task.data={'|'.join(names)}")
    for name in names:
        data = public[name]
        folder = (target or data.folder).resolve()
        size = sum(file.bytes for file in data.files)
        yield f"{data.name}: {size:,} bytes to {folder}; licence: {data.licence}; {data.page}"
        for file in data.files:
            download.fetch_file(file, mirror or data.base, folder)
        place = shlex.quote(str(folder))
        if name in node.get("sources", {}):
            command = f"suite +task={task} task.data={name}{f' data_dir={place}' if target else ''}"
        else:
            command = f"suite data {task} --from {place} --to DIR"
        yield f"next: {render_command(command, directory)}"
