"""`python -m suite.counters.imports MODULE` prints how many modules an import loads, by package, as JSON."""

import importlib
import json
import sys
from collections import Counter


def main(module: str) -> None:
    """Import a module and count."""
    before = set(sys.modules)
    importlib.import_module(module)
    packages = Counter(name.partition(".")[0] for name in set(sys.modules) - before)
    own = {name: count for name, count in sorted(packages.items()) if not _standard(name)}
    print(json.dumps({"modules": {**own, "standard library": packages.total() - sum(own.values())}}))


def _standard(name: str) -> bool:
    """Return whether a module belongs to Python; the names of some begin with an underscore and the platform."""
    return name in sys.stdlib_module_names or name.startswith("_")


if __name__ == "__main__":
    main(sys.argv[1])
