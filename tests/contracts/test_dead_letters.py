from conveyor.testing.contracts.dead_letters import DeadLettersContract


class TestDeadLetters(DeadLettersContract):
    pass
