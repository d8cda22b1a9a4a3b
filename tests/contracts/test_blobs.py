from conveyor.testing.contracts.blobs import BlobsContract


class TestBlobs(BlobsContract):
    pass
