from conveyor.testing.contracts.named import (
    ApiKeysContract,
    ExportsContract,
    InputsContract,
    SigningKeysContract,
)


class TestInputs(InputsContract):
    pass


class TestExports(ExportsContract):
    pass


class TestSigningKeys(SigningKeysContract):
    pass


class TestApiKeys(ApiKeysContract):
    pass
