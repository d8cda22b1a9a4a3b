"""Ownership: another caller's job is reported as not found, like one that does not exist."""

from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.run import Run, RunStatus
from conveyor.errors import NotFound
from conveyor.ports.metadata import Metadata


async def own_job(metadata: Metadata, caller: CallerId, job_id: JobId) -> Job:
    job = await metadata.get(Job, job_id)
    if job is None or job.caller != caller or job.status is JobStatus.DELETED:
        raise NotFound("No such job")
    return job


async def own_run(metadata: Metadata, job: Job, run_id: RunId | None = None) -> Run:
    """Return a run of the job, the latest unless one is named."""
    run = await metadata.get(Run, run_id) if run_id else await latest_run(metadata, job)
    if run is None or run.job_id != job.id or run.status is RunStatus.DELETED:
        raise NotFound("No such run")
    return run


async def latest_run(metadata: Metadata, job: Job) -> Run | None:
    """Return the newest run of the job that is not deleted, if any."""
    return await metadata.get(Run, job.latest_run_id) if job.latest_run_id else None
