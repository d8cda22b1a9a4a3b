from conveyor.testing.contracts.bodies import BodiesContract


class TestBodies(BodiesContract):
    pass
