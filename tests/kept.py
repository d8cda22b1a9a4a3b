"""The bodies a data folder holds, however they are kept."""

import os
from pathlib import Path

from conveyor.adapters.segments.store import visit_segment_store


def every_body(data: Path) -> dict[str, bytes | None]:
    """Each body by its locator, torn or whole, whether a row refers to it or not."""
    return _files(data / "bodies") | _packed(data / "bodies" / "packs")


def _files(folder: Path) -> dict[str, bytes | None]:
    # Not by glob: a folder that goes while it is looked at is nothing to complain of.
    found = (Path(base) / name for base, _, names in os.walk(folder / "jobs") for name in names)
    return {f"file:{path.relative_to(folder)}": path.read_bytes() for path in found}


def _packed(folder: Path) -> dict[str, bytes | None]:
    with visit_segment_store(folder) as store:
        names = [
            name
            for job_id, run_id in store._index.runs("", 9_999)
            for name in store._index.names(job_id, run_id, ("", -1), 999_999)
        ]
        return {
            f"pack:{one.job_id}/{one.run_id}/{one.task_id}.{one.claim_no}": page
            for one, page in zip(names, store._load(names), strict=True)
        }
