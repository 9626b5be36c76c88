"""A fastmcp server with a tool for each kind of answer; its answers depend on nothing but the arguments.

Over stdio; with `--port N` over HTTP on the loopback address, at `/mcp`.
"""

import base64
import sys

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import Image
from pydantic import BaseModel

# The smallest PNG there is: one pixel.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)

server = FastMCP("fast", instructions="Be quick.")


class Weather(BaseModel):
    """Structured content with every kind of value."""

    place: str
    degrees: float
    wet: bool
    hours: list[int]
    note: str | None


@server.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool
def greet(name: str, polite: bool = False) -> str:
    """Greets somebody."""
    return f"Good day, {name}." if polite else f"Hi {name}!"


@server.tool
def weather(place: str) -> Weather:
    """Invents the weather, always the same."""
    return Weather(place=place, degrees=21.50, wet=False, hours=[6, 12, 18], note=None)


@server.tool
def picture() -> Image:
    """Returns an image."""
    return Image(data=PIXEL, format="png")


@server.tool
def fail(why: str) -> str:
    """Fails with a message."""
    raise ToolError(why)


@server.tool
async def steps(count: int, ctx: Context) -> str:
    """Reports progress on the way."""
    for step in range(1, count + 1):
        await ctx.report_progress(step, count, f"step {step}")
    return f"{count} steps"


if "--port" in sys.argv:
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server.run(transport="http", host="127.0.0.1", port=port, show_banner=False)
else:
    server.run(show_banner=False)
