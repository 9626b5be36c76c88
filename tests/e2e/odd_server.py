"""An MCP server that misbehaves on request, in the standard library alone.

Its tools: `die` ends the process in the middle of the call, `wait` answers nothing until it is cancelled, `cancelled`
says how many calls were, and `say` echoes. With `--rubbish` it writes things to stdout that are no messages, before the
handshake and around every answer.
"""

import json
import os
import sys

RUBBISH = "--rubbish" in sys.argv
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
NOTHING = {"type": "object"}
TOOLS = [
    {"name": "say", "description": "Says the text again", "inputSchema": TEXT},
    {"name": "die", "description": "Ends the server in the middle of the call", "inputSchema": NOTHING},
    {"name": "wait", "description": "Answers nothing", "inputSchema": NOTHING},
    {"name": "cancelled", "description": "Says how many calls were cancelled", "inputSchema": NOTHING},
]


def put(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def rubbish():
    if RUBBISH:
        put(b"Listening on stdio...\n\xff\xfe\x00 not text\n{\"level\":\"info\"}\n[]\n\n{\"jsonrpc\":\n")


def answer(request, result):
    rubbish()
    put(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode() + b"\n")
    rubbish()


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def main():
    waiting, cancelled = set(), 0
    rubbish()
    for line in sys.stdin:
        request = json.loads(line)
        method, params = request.get("method"), request.get("params") or {}
        if method == "initialize":
            info = {"name": "odd", "version": "1"}
            version = params["protocolVersion"]
            answer(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "notifications/cancelled":
            if params.get("requestId") in waiting:
                waiting.remove(params["requestId"])
                cancelled += 1
        elif method == "tools/list":
            answer(request, {"tools": TOOLS})
        elif method == "ping":
            answer(request, {})
        elif method == "tools/call":
            name, arguments = params["name"], params.get("arguments") or {}
            if name == "die":
                os._exit(3)
            elif name == "wait":
                waiting.add(request["id"])
            elif name == "cancelled":
                answer(request, text(str(cancelled)))
            else:
                answer(request, text(arguments.get("text", "")))
        elif "id" in request:
            error = {"code": -32601, "message": "no such method"}
            put(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode() + b"\n")


main()
