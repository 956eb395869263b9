"""Downloads the files of public data: resumed after an interruption, and kept only with the published checksum.

A file is written to `NAME.part`, which a later call continues if the server can send the rest (HTTP ranges).
"""

import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from suite import disk
from suite.contract import PublicFile, UserError

BLOCK = 2**18  # bytes that are read at once
SILENCE = 60.0  # seconds without data after which a download fails
AGAIN = "use the same command again, or another server with --mirror URL"


def fetch_file(file: PublicFile, base: str, folder: Path) -> None:
    """Download a file, or the rest of it, and unpack it if it is an archive. A file that is there is only checked.

    Args:
        file: what to download.
        base: URL of the folder that has the file.
        folder: where to write it; it is made if it is absent.

    Raises:
        UserError: if the server fails, the contents are not the published ones, or the folder has another such file.
    """
    if not base.startswith(("http://", "https://")):
        raise UserError(f"{base}: not a URL of a server; --mirror URL must begin with http:// or https://")
    url, path = f"{base.rstrip('/')}/{file.name}", folder / file.name
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        _download(url, part, file.bytes)
        if (got := disk.hash_file(part)) != file.sha256:
            part.unlink()
            raise UserError(f"{url}: its sha256 is {got} instead of {file.sha256}; it was deleted; {AGAIN}")
        with disk.report_errors(path):
            part.replace(path)
    elif disk.hash_file(path) != file.sha256:
        raise UserError(f"{path}: not the published file; move it away, or choose another folder with --to DIR")
    _unpack(path, file.members)


def _download(url: str, part: Path, size: int) -> None:
    """Complete a partial file to `size` bytes.

    Raises:
        UserError: if the server fails, sends fewer bytes, or sends more; in the last case nothing is kept.
    """
    done = part.stat().st_size if part.exists() else 0
    if done == size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if 0 < done < size else {})
    try:
        with urllib.request.urlopen(request, timeout=SILENCE) as response:
            resumed = response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
            length = response.headers.get("Content-Length", "")
            offered = int(length) + (done if resumed else 0) if length.isdecimal() else size
            if offered != size:
                part.unlink(missing_ok=True)
                raise UserError(
                    f"{url}: the server's file has {offered:,} bytes, the published one {size:,}; use another server "
                    "with --mirror URL. To use files that you have, set --from DIR or data_dir=DIR"
                )
            done = _append(response, part, size, done if resumed else 0)
    except urllib.error.HTTPError as error:
        raise UserError(
            f"{url}: the server answers {error.code} {error.reason}; use another with --mirror URL"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"{url}: {getattr(error, 'reason', error) or type(error).__name__}; {AGAIN}") from error
    if done < size:
        raise UserError(f"{url}: ended after {done:,} of {size:,} bytes; {AGAIN}")


def _append(response: IO[bytes], part: Path, size: int, done: int) -> int:
    """Write what the server sends behind the first `done` bytes of a partial file; returns the bytes it then has."""
    disk.make_folder(part.parent)
    with disk.report_errors(part):
        file = part.open("r+b" if done else "wb")
    with file:
        file.seek(done)
        while block := response.read(min(BLOCK, size - done + 1)):
            done += len(block)
            if done > size:
                part.unlink()
                raise UserError(
                    f"{part.name}: the server sends more than {size:,} bytes; use another with --mirror URL"
                )
            with disk.report_errors(part):
                file.write(block)
        with disk.report_errors(part):
            file.flush()
    return done


def _unpack(archive: Path, members: Mapping[str, str]) -> None:
    """Move members of an archive, whose checksum was compared, to their paths beside it, unless they are there."""
    absent = {member: path for member, name in members.items() if not (path := archive.parent / name).exists()}
    if not absent:
        return
    with disk.report_errors(archive.parent), tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        shutil.unpack_archive(archive, scratch)
        for member, path in absent.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, member).replace(path)
