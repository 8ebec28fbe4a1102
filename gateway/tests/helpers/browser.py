"""A headless Chromium that is driven over its DevTools protocol, with a recording for a microphone."""

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import websockets

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-extensions", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
    "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip


class Page:
    """One page; `problems` has its console errors, uncaught exceptions and failed requests."""

    def __init__(self, socket: Any):
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future] = {}
        self.problems: list[str] = []

    async def run(self) -> None:
        """Reads events until the browser ends."""
        async for message in self._socket:
            event = json.loads(message)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            elif event["method"] == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(event["params"]["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.problems.append(event["params"]["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] == "error":
                self.problems.append(json.dumps(event["params"]["args"])[:500])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the DevTools protocol."""
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        answer = await asyncio.wait_for(self._answers[number], 30)
        assert "error" not in answer, answer
        return answer["result"]

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, also of a promise. A script's click counts as one of a person."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        """Opens a page and waits until it is loaded."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.wait("document.readyState === 'complete'")

    async def click(self, name: str) -> None:
        """Clicks the element with this id."""
        await self.evaluate(f"document.getElementById('{name}').click()")

    async def text(self, name: str) -> str:
        """The text of the element with this id."""
        return await self.evaluate(f"document.getElementById('{name}').textContent")

    async def wait(self, condition: str, timeout_s: float = 60.0) -> None:
        """Waits until an expression is true."""
        end = asyncio.get_running_loop().time() + timeout_s
        while not await self.evaluate(f"Boolean({condition})"):
            assert asyncio.get_running_loop().time() < end, f"never true: {condition}; {self.problems}"
            await asyncio.sleep(0.05)

    async def choose(self, name: str, path: Path) -> None:
        """Chooses a file in an <input type=file>."""
        root = await self.call("DOM.getDocument")
        node = await self.call("DOM.querySelector", nodeId=root["root"]["nodeId"], selector=f"#{name}")
        await self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node["nodeId"])

    async def screenshot(self, path: Path, width: int, height: int, theme: str, scale: float = 2.0) -> None:
        """A picture in a window of this size; `theme`: light or dark. Below 500 pixels it is a phone."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
            mobile=width < 500,
        )  # fmt: skip
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        await asyncio.sleep(0.2)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"]))


@asynccontextmanager
async def browser(microphone: Path | None = None) -> AsyncIterator[Page]:
    """A page of its own browser; its microphone plays the WAV file once, or is denied without one."""
    if microphone is None:
        capture = ["--deny-permission-prompts"]
    else:
        capture = ["--use-fake-ui-for-media-stream", f"--use-file-for-fake-audio-capture={microphone}%noloop"]
    assert CHROMIUM, "needs Chromium: apt-get install chromium"
    flags = [*_FLAGS, "--use-fake-device-for-media-stream", *capture]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *flags, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            port = await asyncio.wait_for(_devtools_port(process), 60)
            async with websockets.connect(await _page_url(port), max_size=None) as socket:
                page = Page(socket)
                reading = asyncio.create_task(page.run())
                try:
                    yield page
                finally:
                    reading.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _devtools_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    while b"DevTools listening on" not in (line := await process.stderr.readline()):
        assert line, "the browser ended"
    draining = asyncio.create_task(process.stderr.read())  # a full pipe would stop the browser
    process.drained = draining  # type: ignore[attr-defined]
    return int(line.split(b":")[2].split(b"/")[0])


async def _page_url(port: int) -> str:
    with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/json/list") as response:
        return next(page["webSocketDebuggerUrl"] for page in json.load(response) if page["type"] == "page")
