from conveyor.testing.contracts.outbox import OutboxContract


class TestOutbox(OutboxContract):
    pass
