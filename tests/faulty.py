"""A disk that fails: every call by which a run writes below one directory is counted, and one of them fails."""

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from safetensors import SafetensorError

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
BY_PATH = ("mkdir", "replace", "unlink", "rmdir", "rename")
BY_DESCRIPTOR = ("write", "fsync", "ftruncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Faulty:
    """Counts writes below `root`.

    Args:
        patch: puts the counting functions into `os`, and takes them out again.
        root: the directory.
        at: the number of the write that fails, from 1; 0 for none.
        before: called just before that one fails.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, at: int = 0, before: Callable[[], None] = lambda: None):
        self.root, self.at, self.before, self.count, self.failed = root.resolve(), at, before, 0, ""
        for name in BY_PATH:
            self._wrap(patch, os, name, lambda path, *rest, **named: path)
        for name in BY_DESCRIPTOR:
            self._wrap(patch, os, name, lambda descriptor, *rest: f"/proc/self/fd/{descriptor}")
        self._wrap(patch, os, "open", lambda path, flags, *rest, **named: path if flags & WRITES else None)
        self._wrap(patch, builtins, "open", lambda path, mode="r", *rest, **named: path if mode[0] in "wax" else None)
        self._wrap(patch, safetensors.numpy, "save_file", lambda arrays, path, **named: path)

    def _wrap(self, patch: pytest.MonkeyPatch, module: Any, name: str, find: Callable[..., Any]) -> None:
        real = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            path = find(*arguments, **named)
            # a number is a descriptor: subprocess opens pipes by them
            place = None if path is None or isinstance(path, int) else Path(path)
            if place is not None and self.root in (place.resolve(), *place.resolve().parents):
                self.count += 1
                if self.count == self.at:
                    self._fail(real, name, place, arguments)
            return real(*arguments, **named)

        patch.setattr(module, name, call)

    def _fail(self, real: Callable[..., Any], name: str, path: Path, arguments: tuple[Any, ...]) -> None:
        self.failed = f"{name} {path.resolve()}"
        self.before()
        number = ERRORS[self.at % len(ERRORS)]
        if name == "write":
            real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])  # a full disk takes a part
        if name == "save_file":
            path.write_bytes(b"half a file")
            raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")
        raise OSError(number, os.strerror(number), str(path))
