"""Server-sent events: news written as it comes, until it ends or the listener leaves."""

import asyncio
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from conveyor.steps.progress import Updates

MEDIA_TYPE = "text/event-stream"
ALIVE = b":\n\n"  # a comment: proxies see bytes, clients see nothing
HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would keep events back
}


class EventStream(Response):
    """An answer that goes on for as long as there is news. HEAD gets its head alone."""

    media_type = MEDIA_TYPE

    def __init__(self, news: Updates) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._news = news

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        if scope["method"] != "HEAD":
            await self._tell(receive, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._send_news(send))
            staying = group.create_task(_until_left(receive))
            await asyncio.wait({telling, staying}, return_when=asyncio.FIRST_COMPLETED)
            telling.cancel()
            staying.cancel()

    async def _send_news(self, send: Send) -> None:
        async with aclosing(self._news) as news:
            async for one in news:
                part = ALIVE if one is None else one
                await send({"type": "http.response.body", "body": part, "more_body": True})


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
