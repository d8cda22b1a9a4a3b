"""SQS for tests: a proxy that counts requests and makes faults."""
