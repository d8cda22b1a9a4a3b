"""A mock of the ZenRows gateway over real HTTP: `conveyor mock-gateway`, `conveyor dev`, the demo.

The first label of the target's host selects the response: `https://flaky.example/a?fails=2` is
flaky, whatever its path. The target's query holds options. Any other host returns a page.

    ok          a page that shows the request (never the key); `size=` bytes, 2048 by default;
                JSON, Markdown or text when the parameters ask for it
    gzip        the same, compressed           big         8 MiB or `size=`, without a length
    slow        ok after `ms=` (250)           drip        ok, a byte every `ms=` (20)
    bomb        gzip, a small response that decompresses to `size=` zeros (100 MiB)
    flaky       422 RESP001 for the first `fails=` (1) calls of that very URL, then ok;
                502 RESP003 with `status=502`
    busy        429 AUTH006 for the first `fails=` (1) calls, with `Retry-After: after=` (1)
    premium     422 RESP001 until the request has `premium_proxy=true`, then ok
    permanent   404 RESP002                    nohost      404 RESP007
    blocked     403 REQS001                    captcha     424 RESP006
    unparsed    502 RESP003                    timedout    504 CTX0002
    nocredits   402 AUTH004                    capped      402 api_key_cap_reached
    badkey      401 AUTH002                    banned      403 BLK0001
    leaky       422 RESP001 whose detail and final URL repeat the caller's key
    status      `code=` (404) with a page and no problem document
    dropped     closed without a response      cut         closed in the middle of the page
                                                           (of a chunk, with `chunked=1`)
    truncated   gzip that ends too soon, in a complete response
    encoded     ok, with a false Content-Encoding of `as=` (foo)
    stuck       half a page, then silence (with `chunked=1`, after a chunk)
    rubbish     bytes that are not HTTP        hang        no response, ever

Each response has a new `X-Request-Id`; a page shows the id of its request. `Zr-Final-Url` is the
target, or `final=`.
A request without a key gets 401 AUTH001, one without a target 400 REQS004. `GET /_mock/stats`
returns the counters and `POST /_mock/reset` sets them to zero. `POST
/_mock/refuse?key=…&as=nocredits` refuses every call of a key as that target would, until
`POST /_mock/accept?key=…`.
"""
