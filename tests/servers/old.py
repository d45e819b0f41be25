"""A small HTTP server of an older Python release, written as its examples were.

Usage: python old.py sdk|fastmcp stateless|sessions. Prints its URL as the first line.
"""

import socket
import sys

import uvicorn

package, mode = sys.argv[1:3]
if package == "sdk":
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("old", stateless_http=mode == "stateless")
    app = server.streamable_http_app
else:
    from fastmcp import FastMCP

    server = FastMCP("old")

    def app():
        return server.http_app(stateless_http=mode == "stateless")


@server.tool()
def hello() -> str:
    """Says hello."""
    return f"hello of {package}"


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
uvicorn.Server(uvicorn.Config(app(), log_level="warning")).run(sockets=[listener])
