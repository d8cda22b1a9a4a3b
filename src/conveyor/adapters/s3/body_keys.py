"""The keys of bodies that are objects.

    jobs/<job>/runs/<run>/<task id>.<claim number, 8 digits>.<nonce>

They sort by task and claim number. A locator is `s3:` and a key.
"""

import re

from conveyor.adapters.shared.body_segments import run_folder
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.ports.bodies import BodyName

SCHEME = "s3:"
LAST = "~"  # sorts after every character of a key
RUN = re.compile(r"jobs/(?P<job>[^/]+)/runs/(?P<run>[^/]+)/")
BODY = re.compile(r"(?P<task>.+)\.(?P<claim>\d{8,})\.[^.]+")


def run_of(key: str) -> tuple[JobId, RunId] | None:
    """The run that an object belongs to; None if it is not Conveyor's."""
    found = RUN.match(key)
    return (JobId(found["job"]), RunId(found["run"])) if found else None


def body_prefix(name: BodyName) -> str:
    """What the keys of all objects under one claim begin with."""
    folder = run_folder(name.job_id, name.run_id)
    return f"{folder}{name.task_id}.{name.claim_no:08d}."


def body_of(job_id: JobId, run_id: RunId, key: str) -> BodyName:
    """The body under a key. What is none has its own name as task id."""
    file = key.removeprefix(run_folder(job_id, run_id))
    found = BODY.fullmatch(file)
    if found is None:
        return BodyName(job_id, run_id, TaskId(file), 0)
    return BodyName(job_id, run_id, TaskId(found["task"]), int(found["claim"]))
