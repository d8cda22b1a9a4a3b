"""A plugin of pytest that plants one bug: `PLANTED_BUG=name pytest -p tests.planted.plant`.

The module of the bug is compiled from changed source. It must be imported in this process.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from tests.planted.bugs import BUGS, Bug

VARIABLE = "PLANTED_BUG"


class _Loader(SourceFileLoader):
    def __init__(self, bug: Bug, path: str) -> None:
        super().__init__(bug.module, path)
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        return compile(self._bug.planted_in(source), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._bug.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec
        assert spec.origin
        spec.loader = _Loader(self._bug, spec.origin)
        return spec


if name := os.environ.get(VARIABLE):
    assert BUGS[name].module not in sys.modules, "imported before the bug was planted"
    sys.meta_path.insert(0, _Finder(BUGS[name]))
