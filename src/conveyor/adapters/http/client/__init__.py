"""HTTP/1.1 clients for gateways, sites and webhooks: our own, and aiohttp behind the same seam.

Conveyor has its own client because a page costs less CPU with it (decision 0021), and because it
must know exactly what was sent and received:

- **Reuse.** A connection is kept only after a complete response with nothing behind it, on which
  neither side asked to close. Bytes that arrive without a request close the connection: otherwise
  they would be read as the response to the next request, and one caller's page would be stored
  under another caller's task. A pool reuses the connection that rested for the shortest time,
  since servers close those that rest, and closes them itself after 15 seconds.
- **Framing.** `httptools` parses. A response with a transfer coding other than `chunked`, a second
  response to one request, or a head over the bounds is an error. A body without a length ends with
  the connection, which is not reused.
- **Repeats.** This client never repeats a request, not even a GET on a reused connection that the
  server was about to close: gateways charge for each one. The caller gets `NoResponse`, and the
  task is retried by its own rules.
- **Bounds.** Heads, buffered bytes, decompressed sizes, silences and whole calls are bounded. A
  connection that delivers faster than it is read is paused.

`transport` is what the gateways see of a client, `connection` is one connection and `pool` keeps
connections. `aiohttp_transport` does the same over aiohttp (decision 0044). `resolver` checks
addresses, `body` reads bodies, and `deadline` bounds calls; these serve both clients.
"""
