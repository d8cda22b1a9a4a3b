"""DynamoDB without an account: a meter of its bill, a strict server, and a proxy with faults."""
