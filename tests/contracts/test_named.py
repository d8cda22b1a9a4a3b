from conveyor.testing.contracts.named import ExportsContract, InputsContract


class TestInputs(InputsContract):
    pass


class TestExports(ExportsContract):
    pass
