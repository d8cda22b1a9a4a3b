from conveyor.testing.contracts.tasks import TasksContract


class TestTasks(TasksContract):
    pass
