"""Public data sets: what `suite data TASK --fetch` downloads, and where a task finds it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from suite.contract.errors import UserError


@dataclass(frozen=True)
class PublicFile:
    """A file that can be downloaded.

    Attributes:
        name: below the base URL, and in the folder.
        bytes: its size.
        sha256: its published checksum.
        members: for an archive, the members to unpack, and the path of each in the folder.
    """

    name: str
    bytes: int
    sha256: str
    members: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class PublicData:
    """A data set that its authors let everyone download.

    Attributes:
        name: as in `Data.name`.
        base: URL that the files' names are appended to.
        files: what to download.
        licence: name of the licence, or what the authors ask for.
        page: URL of the authors' description.
        command: the command that fetches it.
        package: Debian's package of the data; "" if there is none.
        package_folder: where the package puts the files.
    """

    name: str
    base: str
    files: tuple[PublicFile, ...]
    licence: str
    page: str
    command: str
    package: str = ""
    package_folder: str = ""

    @property
    def folder(self) -> Path:
        """Where `--fetch` puts the files, unless `--to` names another folder."""
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "suite" / "data" / self.name

    def find(self, data_dir: str | Path | None) -> Path:
        """Return the folder of the files: `data_dir` if it is set, else that of `--fetch`, else the package's.

        Raises:
            UserError: if no folder is set, and no other one has all files.
        """
        if data_dir is not None:
            return Path(data_dir).expanduser()
        paths = [path for file in self.files for path in (file.members.values() or [file.name])]
        for folder in (self.folder, *([Path(self.package_folder)] if self.package else [])):
            if all((folder / path).is_file() for path in paths):
                return folder
        package = f", `apt install {self.package}`" if self.package else ""
        raise UserError(f"no files of {self.name}; use `{self.command}`{package}, or set data_dir=DIRECTORY")


@runtime_checkable
class OffersPublic(Protocol):
    """A task's module with data that can be downloaded.

    A key of `PUBLIC` is the source that reads the data, or, if no source has that name, a name for raw data that
    `suite data TASK --from DIR --to DIR` prepares.
    """

    PUBLIC: Mapping[str, PublicData]
