"""What AWS would charge for a million tasks, and which of its limits is met first.

A model on paper: published prices and limits, and what a task uses as `aws_cost.py` counted it. It writes
the tables and charts of `docs/aws-cost.md`.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.log_chart import Chart, Line

DOCS = Path(__file__).parent.parent / "docs"
MILLION = 1_000_000
HOUR = 3600


class Prices(msgspec.Struct, frozen=True):
    """US dollars in us-east-1, of a million requests or units unless it says otherwise."""

    write: float = 0.625  # DynamoDB on demand, write request units
    read: float = 0.125
    queue: float = 0.40  # SQS, standard queues
    put: float = 5.00  # S3 Standard
    vcpu_hour: float = 0.04048  # Fargate, x86
    gb_hour: float = 0.004445


class AwsLimits(msgspec.Struct, frozen=True):
    partition_writes: float = 1_000  # units a second for one partition key
    new_table_writes: float = 4_000  # of a table on demand, until its traffic has grown
    table_writes: float = 40_000  # the quota of a table, which AWS raises on request
    prefix_puts: float = 3_500  # a second, before S3 has split a prefix
    index_partitions: int = 4  # of a listing over all callers


class Usage(msgspec.Struct, frozen=True):
    """What tasks and jobs use, as `aws_cost.py` counts it. Pages succeed at the first attempt."""

    row_writes: float = 4.00  # WCU of a task on the partition of its row: insert, claim, settle
    counter_writes: float = 0.08  # on the partition of its job
    job_writes: float = 25.0  # WCU of a job, whatever its size
    job_index_writes: float = 8.0  # of those, on one listing
    reads: float = 0.11  # RCU of a task: checks for completion
    listed: float = 0.072  # RCU of a row in a page of results, of an ended run over 8 shards
    queue: float = 0.30  # requests of a task: send, receive, ack, in tens
    job_queue: float = 2.0  # CreateQueue, DeleteQueue
    cpu: float = 0.0008  # seconds of a worker, of a task, with the gateway and S3
    group: float = 50.0  # tasks settled together, whose bodies are one segment

    @property
    def writes(self) -> float:
        return self.row_writes + self.counter_writes


class Fleet(msgspec.Struct, frozen=True):
    """How the service is run."""

    concurrency: int = 500  # tasks in flight in a worker
    used: float = 0.6  # of a worker's core
    vcpu: float = 1.0
    gb: float = 2.0
    most_inflight: int = 10_000  # of a job


PRICES, LIMITS, USAGE, FLEET = Prices(), AwsLimits(), Usage(), Fleet()
# On paper: a row, its flip to processing, its result, a statistic, an event, a lease taken and returned;
# a listing asks every shard for a whole page, and reads each row again to filter it.
SIMPLE_WRITES, SIMPLE_READS = 7.0, 16.0
ROW = 0.5  # KB


# One job.


def rates(shards: int, page: float, *, segments: bool, is_new: bool) -> dict[str, float]:
    """Tasks a second that each limit allows one job."""
    table = LIMITS.new_table_writes if is_new else LIMITS.table_writes
    puts = 1 / USAGE.group if segments else 1.0
    partition = LIMITS.partition_writes
    by_rows = shards * partition / USAGE.row_writes
    if shards == 1:
        by_rows = partition / USAGE.writes  # its counters are there too
    return {
        "its partitions": by_rows,
        "the partition of its counters": partition / USAGE.counter_writes,
        "a new table" if is_new else "the quota of the table": table / USAGE.writes,
        "the prefix of its pages in S3": LIMITS.prefix_puts / puts,
        "`max_inflight`": FLEET.most_inflight / page,
    }


def first_limit(found: dict[str, float]) -> tuple[str, float]:
    name = min(found, key=lambda one: found[one])
    return name, found[name]


def workers(rate: float, page: float) -> int:
    """Processes of one core that a rate takes."""
    by_cpu = rate * USAGE.cpu / FLEET.used
    by_places = rate * page / FLEET.concurrency
    return max(1, -int(-max(by_cpu, by_places) // 1))


class Bill(msgspec.Struct, frozen=True):
    """Dollars."""

    writes: float
    reads: float
    queue: float
    puts: float
    compute: float

    @property
    def total(self) -> float:
        return self.writes + self.reads + self.queue + self.puts + self.compute


def bill(tasks: float, jobs: float, *, processes: int, seconds: float, segments: bool) -> Bill:
    hour = PRICES.vcpu_hour * FLEET.vcpu + PRICES.gb_hour * FLEET.gb
    return Bill(
        writes=(tasks * USAGE.writes + jobs * USAGE.job_writes) / MILLION * PRICES.write,
        reads=tasks * (USAGE.reads + USAGE.listed) / MILLION * PRICES.read,
        queue=(tasks * USAGE.queue + jobs * USAGE.job_queue) / MILLION * PRICES.queue,
        puts=tasks / (USAGE.group if segments else 1) / MILLION * PRICES.put,
        compute=processes * seconds / HOUR * hour,
    )


def one_job_table() -> str:
    lines = [
        "| shards | pages | table | tasks a second | 1,000,000 take | first limit | workers | dollars |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shards, page, is_new, segments in (
        (1, 1.0, False, False),
        (8, 1.0, True, False),
        (8, 1.0, False, False),
        (8, 5.0, False, False),
        (8, 10.0, False, False),
        (16, 1.0, False, False),
        (16, 1.0, False, True),
        (64, 1.0, False, True),
    ):
        name, rate = first_limit(rates(shards, page, segments=segments, is_new=is_new))
        seconds = MILLION / rate
        processes = workers(rate, page)
        cost = bill(MILLION, 1, processes=processes, seconds=seconds, segments=segments)
        stored = "segments" if segments else "objects"
        lines.append(
            f"| {shards} | {page:g} s, {stored} | {'new' if is_new else 'grown'} | {rate:,.0f} "
            f"| {seconds / 60:,.1f} min | {name} | {processes} | {cost.total:.2f} |"
        )
    return "\n".join(lines)


def one_job_chart() -> Chart:
    shards = [1, 2, 4, 8, 16, 32, 64, 128]

    def minutes(rate: float) -> float:
        return MILLION / rate / 60

    def flat(name: str, rate: float) -> Line:
        return Line(name, [(shard, minutes(rate)) for shard in shards])

    found = rates(8, 1.0, segments=False, is_new=True)
    slowest = [
        (n, minutes(first_limit(rates(n, 1.0, segments=False, is_new=False))[1])) for n in shards
    ]
    by_rows = [
        (n, minutes(rates(n, 1.0, segments=False, is_new=False)["its partitions"])) for n in shards
    ]
    quota = LIMITS.table_writes / USAGE.writes
    return Chart(
        title="One job of 1,000,000 tasks: minutes, by shards (pages of 1 s, as objects)",
        across="shards of the job",
        up="minutes",
        x=(1, 128),
        y=(0.5, 100),
        marks_x=shards,
        marks_y=[0.5, 1, 2, 5, 10, 20, 50, 100],
        lines=[
            Line("fastest possible", slowest, is_bold=True),
            Line("partitions of the job", by_rows),
            flat("a new table", found["a new table"]),
            flat("the quota of a table", quota),
            flat("prefix in S3", LIMITS.prefix_puts),
            flat("max_inflight, pages of 5 s", FLEET.most_inflight / 5),
        ],
    )


# Many jobs.

JOBS = 1_000 / 60  # a second


def demand(tasks: int) -> dict[str, tuple[float, float]]:
    """What 1,000 jobs a minute of so many tasks ask of each limit, a second: asked and allowed."""
    writes = JOBS * (USAGE.job_writes + tasks * USAGE.writes)
    index = JOBS * USAGE.job_index_writes / LIMITS.index_partitions
    return {
        "the table, while it is new": (writes, LIMITS.new_table_writes),
        "the quota of the table": (writes, LIMITS.table_writes),
        "a partition of an index": (index, LIMITS.partition_writes),
        "the partition of a job": (100 / 1.0 * USAGE.writes, LIMITS.partition_writes),
    }


def many_jobs_table() -> str:
    columns = (
        "tasks of a job",
        "tasks a second",
        "WCU a second",
        "WCU a task",
        "SQS requests a second",
        "live runs",
        "workers",
        "dollars an hour",
        "of a new table",
        "of the quota",
    )
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for tasks in (1, 10, 100, 500, 1_000):
        rate = JOBS * tasks
        asked, _ = demand(tasks)["the quota of the table"]
        queue = rate * USAGE.queue + JOBS * USAGE.job_queue
        live = JOBS * (tasks / 100 + 5)
        processes = workers(rate, 1.0)
        cost = bill(rate * HOUR, JOBS * HOUR, processes=processes, seconds=HOUR, segments=False)
        lines.append(
            f"| {tasks:,} | {rate:,.0f} | {asked:,.0f} | {asked / rate:.1f} | {queue:,.0f} "
            f"| {live:,.0f} | {processes} | {cost.total:,.2f} "
            f"| {asked / LIMITS.new_table_writes:.0%} | {asked / LIMITS.table_writes:.0%} |"
        )
    return "\n".join(lines)


def many_jobs_chart() -> Chart:
    sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000]

    def flat(name: str, value: float) -> Line:
        return Line(name, [(size, value) for size in sizes])

    return Chart(
        title="1,000 jobs a minute: WCU a second, by tasks of a job",
        across="tasks of a job",
        up="WCU a second",
        x=(1, 2_000),
        y=(500, 200_000),
        marks_x=[1, 10, 100, 1_000],
        marks_y=[500, 1_000, 4_000, 10_000, 40_000, 100_000],
        lines=[
            Line("Conveyor", [(n, _asked(n)) for n in sizes], is_bold=True),
            flat("a new table", LIMITS.new_table_writes),
            flat("the quota of a table", LIMITS.table_writes),
            Line(
                "the simple design",
                [(n, JOBS * (USAGE.job_writes + n * SIMPLE_WRITES)) for n in sizes],
            ),
        ],
    )


def _asked(tasks: int) -> float:
    return demand(tasks)["the quota of the table"][0]


# A million tasks, beside the simple design.


def dollars_table() -> str:
    simple_reads = SIMPLE_READS * ROW / 4 / 2  # eventual
    rows: Sequence[tuple[str, float, float]] = [
        ("writes of DynamoDB", USAGE.writes * PRICES.write, SIMPLE_WRITES * PRICES.write),
        ("checks for completion", USAGE.reads * PRICES.read, 0.0),
        ("every result listed once", USAGE.listed * PRICES.read, simple_reads * PRICES.read),
        ("SQS", USAGE.queue * PRICES.queue, 3.0 * PRICES.queue),
        ("S3, pages as objects", PRICES.put, PRICES.put),
    ]
    lines = ["| for 1,000,000 tasks | Conveyor | simple design |", "|---|---|---|"]
    lines += [f"| {name} | {ours:.2f} | {simple:.2f} |" for name, ours, simple in rows]
    ours, simple = sum(row[1] for row in rows), sum(row[2] for row in rows)
    lines.append(f"| all | **{ours:.2f}** | {simple:.2f} |")
    segments = ours - PRICES.put + PRICES.put / USAGE.group
    lines.append(f"| all, pages in segments | **{segments:.2f}** | |")
    return "\n".join(lines)


TABLES = {
    "dollars": dollars_table,
    "one-job": one_job_table,
    "many-jobs": many_jobs_table,
}
CHARTS = {"aws-one-job.svg": one_job_chart, "aws-many-jobs.svg": many_jobs_chart}


def filled(page: str) -> str:
    """The page with its tables replaced, between the comments that name them."""
    for name, table in TABLES.items():
        start, end = f"<!-- model: {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(start)
        _, _, after = rest.partition(end)
        page = f"{before}{start}\n{table()}\n\n{end}{after}"
    return page


def main() -> None:
    for name, table in TABLES.items():
        print(f"\n{name}\n{table()}")
    page = DOCS / "aws-cost.md"
    page.write_text(filled(page.read_text()))
    for name, chart in CHARTS.items():
        (DOCS / name).write_text(chart().svg())


if __name__ == "__main__":
    main()
