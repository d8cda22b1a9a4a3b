from conveyor.testing.contracts.graves import GravesContract


class TestGraves(GravesContract):
    pass
