"""What live runs wait for, also in a process that does not serve them.

Of a run that the dispatcher of this process serves, the dispatcher knows. Of another run the records
that processes share tell (`shared_limits`): those of its gateway key, of the gateway and of the
storage of pages. No process serves a run whose gateway key cannot be decrypted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from conveyor.domain.breaker import gateway_key_digest
from conveyor.domain.credentials import context
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.progress import Waiting, unreadable_key_wait
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.ports.encryption import KeyRing, Undecryptable
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.shared_limits import SharedLimits

MOST_DIGESTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaits:
    dispatcher: Dispatcher
    encryption: KeyRing
    digests: dict[bytes, str] = field(default_factory=dict)  # of gateway keys, by ciphertext

    async def find(self, runs: Sequence[tuple[Job, Run]]) -> Mapping[RunId, Waiting]:
        """Return what each of the runs waits for; one that is paused or has ended does not wait."""
        open_runs = [(job, run) for job, run in runs if run.is_live and not run.is_paused]
        waits = {run.id: self.dispatcher.waiting(run.id) for _, run in open_runs}
        elsewhere = dict[RunId, str]()  # the digests of their gateway keys
        for job, run in open_runs:
            if run.id in self.dispatcher.runs:
                continue
            try:
                elsewhere[run.id] = await self._digest(job)
            except Undecryptable:
                waits[run.id] = unreadable_key_wait(run)
        limits = self.dispatcher.shared_limits
        if limits and elsewhere:
            waits |= await self._find_elsewhere(limits, elsewhere)
        return {run_id: waiting for run_id, waiting in waits.items() if waiting}

    async def _find_elsewhere(
        self, limits: SharedLimits, digests: Mapping[RunId, str]
    ) -> Mapping[RunId, Waiting | None]:
        await limits.follow_keys(set(filter(None, digests.values())))
        for_all = self.dispatcher.health.waiting() or limits.storage_wait()
        return {run_id: limits.key_wait(digest) or for_all for run_id, digest in digests.items()}

    async def _digest(self, job: Job) -> str:
        """Return the digest of the gateway key of a job; "" while the encryption keys are away."""
        encrypted = job.encrypted_gateway_key
        if (known := self.digests.get(encrypted)) is not None:
            return known
        try:
            key = await self.encryption.decrypt(encrypted, context=context(job.caller, job.id))
        except Undecryptable:
            raise
        except Unavailable:
            return ""
        if len(self.digests) >= MOST_DIGESTS:
            self.digests.clear()
        digest = self.digests[encrypted] = gateway_key_digest(key)
        return digest
