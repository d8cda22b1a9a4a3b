"""`conveyor` with the embedded engines taken for shared ones: `python -m tests.harness.shared_sqlite`.

So a role that needs shared engines can be tested alone, as a real process. A second process on the
same folder is still kept out by the lock.
"""

from dataclasses import replace
from typing import Any, cast

from conveyor.app.engines import SCHEMES
from conveyor.app.schemes import Scheme
from conveyor.cli.main import main

if __name__ == "__main__":
    for schemes in SCHEMES.values():
        rows = cast("dict[str, Scheme[Any]]", schemes)
        for name, row in rows.items():
            rows[name] = replace(row, is_shared=True, needs_address=False)
    main()
