"""The Python package's two clients differ in nothing but how they wait: a change of one is made in the other, too."""

import pathlib

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "clients" / "python" / "src" / "punctual"
# What stands in the client for asyncio, and in the one for threads.
DIFFERENCES = [
    ('"""The client for asyncio."""', '"""The client for threads."""'),
    ("import asyncio\n", "import time\n"),
    (
        "for asyncio. A call that is cancelled takes its request out of the server's plan.",
        "for threads. One client serves all threads of a process; it keeps its connections.",
    ),
    ('(await client.infer("resnet50", images, deadline_ms=50)).array', 'client.infer("resnet50", images, deadline_ms=50).array'),
    ("from .http_async import", "from .http_sync import"),
    ("import AsyncTransport, Clock", "import Clock, Transport"),
    ("asyncio.sleep", "time.sleep"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("await ", ""),
    ("async def", "def"),
    ("async with", "with"),
    ("Async", ""),
]


def test_one_client_is_the_other_with_await():
    text = (SOURCE / "aclient.py").read_text()
    for here, there in DIFFERENCES:
        assert here in text, f"{here!r} isn't in aclient.py: take it out of the list"
        text = text.replace(here, there)
    assert text == (SOURCE / "client.py").read_text()
