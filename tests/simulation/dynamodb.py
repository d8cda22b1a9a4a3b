"""A shared store whose rows are on the fake of DynamoDB, in this process."""

from datetime import timedelta
from random import Random

from conveyor.adapters.aws.dynamodb.layout import table_definition
from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_engine import open_task_rows
from conveyor.adapters.memory.queues import Habits
from conveyor.ports.clock import Clock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import Loss, client_in_process
from conveyor.testing.shared.faults import FaultInjector, FaultyPort
from conveyor.testing.shared.store import SharedPorts, SharedStore

TABLE = "conveyor"
LOST = 0.03  # of attempts, while the store has faults: the adapters find out what became of them


class DynamoStore(SharedStore):
    """Rows on DynamoDB, whose indexes lag and whose answers are lost; queues in memory."""

    def __init__(
        self, clock: Clock, *, lease: timedelta, injector: FaultInjector, habits: Habits
    ) -> None:
        super().__init__(clock, lease=lease, injector=injector, habits=habits)
        self.injector = injector
        self.engine = DynamoDbEngine(clock, Knobs(writes_per_second=None, reads_per_second=None))
        self.engine.execute("CreateTable", table_definition(TABLE))

    def open(
        self, *, clock: Clock | None = None, holder: str = "", faulty: bool = True
    ) -> SharedPorts:
        clock = clock or self.clock
        client = client_in_process(
            self.engine, latency=timedelta(), loss=self._loss if faulty else self._look
        )
        client._jitter = _NoPauses()
        table = DynamoTable(client, TABLE)
        rows = open_task_rows(
            table, clock, lease=self.lease, holder=holder, random=Random(holder or "plain")
        )
        others = super().open(clock=clock, holder=holder, faulty=False)
        ports = {
            "metadata": DynamoMetadata(table, clock),
            "tasks": rows.tasks,
            "claims": rows.claims,
            "work": others.work,  # not used: the rows are no queue
            "queues": others.queues,
            "control_queue": others.control_queue,
        }
        if faulty:
            ports = {name: FaultyPort(port, self.injector) for name, port in ports.items()}
        return SharedPorts(**ports)  # type: ignore[arg-type]

    def _loss(self, _operation: str) -> Loss | None:
        faults = self.injector.faults
        if not faults.lagging:
            self._look(_operation)
            return None
        self.engine.knobs.index_lag = faults.lag
        is_lost = faults.lost and self.injector.random.random() < LOST
        return self.injector.random.choice(list(Loss)) if is_lost else None

    def _look(self, _operation: str) -> None:
        """Let indexes catch up: who looks at what is stored sees the present."""
        self.engine.knobs.index_lag = timedelta()
        for table in self.engine.tables.values():
            table.advance(float("inf"), float("-inf"))


class _NoPauses(Random):
    """Retries come at once: nothing here waits by the clock of the machine."""

    def uniform(self, _a: float, _b: float) -> float:
        return 0.0
