"""Submit tasks from a generator, which is never held in memory as a whole, and follow the run."""

import os
from collections.abc import Iterator

from conveyor.client import Conveyor, NewTask

URL = os.environ.get("CONVEYOR_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ.get("CONVEYOR_KEY", "my-key")
COUNT = int(os.environ.get("COUNT", "12000"))  # above 10,000 it takes more than one call


def tasks() -> Iterator[NewTask]:
    for number in range(COUNT):
        yield NewTask(url=f"https://ok.example/{number}?size=100", external_id=f"page-{number}")


with Conveyor(URL, KEY) as conveyor:
    job = conveyor.submit(tasks(), name="any length", max_inflight=300)
    print(f"{job.accepted_tasks} tasks accepted as job {job.job_id}")
    for state in conveyor.progress(job.job_id):
        rest = f", {state.eta_seconds:.0f} s to go" if state.eta_seconds else ""
        print(f"{state.status}: {state.stats.completed} of {state.stats.total}{rest}")
    conveyor.delete(job.job_id)
