from conveyor.testing.contracts.metadata import MetadataContract


class TestMetadata(MetadataContract):
    pass
