"""The handlers of HTTP requests, by topic: each is a few lines between a request and a step."""
