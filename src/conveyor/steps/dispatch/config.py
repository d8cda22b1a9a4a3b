"""The limits and intervals of a dispatcher."""

from dataclasses import dataclass
from datetime import timedelta

SETTLE_LOOPS = 3  # groups settled concurrently: one writes bodies while another commits
BATCH_WAIT = timedelta(milliseconds=5)  # how long a small claim or settle waits for more tasks
LEASE = timedelta(seconds=30)
IDLE_RUNS = 500  # with more runs than this, each idle one is polled less often
LEAST_STOP = timedelta(seconds=1)  # of a stop, without which nothing could be handed back
LONGEST_SETTLING = timedelta(seconds=2)  # at the end of a stop
PROBE_CHOICE = 20  # tasks claimed for a probe of the gateway, to find one of another host


@dataclass(slots=True, kw_only=True)
class DispatchConfig:
    concurrency: int = 500  # tasks started and not settled in this process, over all runs
    refresh: timedelta = timedelta(seconds=1)  # between looks for new live runs
    resync: timedelta = timedelta(seconds=30)  # between reads of all live runs
    renewal: timedelta = timedelta(seconds=10)  # of leases and permits, well within a lease
    # Younger leases are not renewed, nor those of tasks whose rows are being settled. Zero: all are,
    # which costs little where the rows are in this process's database.
    renew_from: timedelta = timedelta()
    lease: timedelta = LEASE  # of permits; unused ones are given up when it is over
    batch: int = 50  # tasks that make a claim or a settle worth its round trip
    permit_wait: timedelta = timedelta()  # how long a few permits wait for more before a claim
    shortest_idle: timedelta = timedelta(milliseconds=20)  # of a run with nothing due
    longest_idle: timedelta = timedelta(milliseconds=500)
    # A run in which nothing was due for so long is served no more until it changes or at the next
    # resync; zero: every live run is served.
    serve_idle: timedelta = timedelta()
    unavailable_wait: timedelta = timedelta(seconds=1)  # until an engine is tried again
    claim_loops: int = 3  # concurrent claims: one waits for the engine while another starts tasks
    # Each run is claimed by calls of its own, one at a time, whatever the number of loops. A call for
    # several runs lasts as long as for the slowest of them.
    claims_apart: bool = False
    # How long finished tasks may wait for more of their run to be settled with. Zero: not at all.
    settle_wait: timedelta = timedelta()
    # As many tasks are prefetched as a run is likely to start within this time.
    prefetch: timedelta = timedelta(milliseconds=40)
    grace: timedelta = timedelta(seconds=20)  # in which the program stops

    @property
    def stop_times(self) -> "StopTimes":
        return StopTimes(self.grace)

    @property
    def probe_choice(self) -> int:
        """Tasks to claim for a probe. Without prefetch there is no place for those not chosen."""
        return PROBE_CHOICE if self.prefetch else 1


class StopTimes:
    """How long the phases of a stop may last, in seconds from the signal.

    They share one deadline, `end`: whatever one phase takes is missing from the others.
    """

    def __init__(self, grace: timedelta) -> None:
        whole = max(grace, LEAST_STOP)
        work = whole - min(LONGEST_SETTLING, whole / 4)
        self.calls = min(grace, work).total_seconds()  # to the gateway
        self.work = work.total_seconds()  # claims, requests and background work under way
        self.end = whole.total_seconds()


def config_over_queues(concurrency: int) -> DispatchConfig:
    """For queues that charge for each call: full batches, few empty receives, no prefetch."""
    return DispatchConfig(
        concurrency=concurrency,
        batch=10,
        renew_from=LEASE / 2,
        permit_wait=timedelta(milliseconds=50),
        longest_idle=timedelta(seconds=5),
        refresh=timedelta(seconds=10),
        resync=timedelta(minutes=10),
        serve_idle=timedelta(minutes=10),
        prefetch=timedelta(),
        claims_apart=True,
    )
