"""A whole deployment on this machine's loopback: engines, gateway, one api and two workers."""
