"""Drives `portcullis serve` with the official Python SDK's client, in front of real servers.

Needs in its environment: PORTCULLIS_BIN (the binary) and PORTCULLIS_E2E (the folder that `.ci/run` installs into).
Prints a line for each check; ends with 1 at the first that fails, and says what was seen.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

import processes

BINARY = os.environ["PORTCULLIS_BIN"]
INSTALLED = Path(os.environ["PORTCULLIS_E2E"])
HERE = Path(__file__).resolve().parent
REFUSAL = "portcullis/refusal"
# Longer than anything here takes on a slow machine; a hang must end.
OVERALL = 300
PATIENCE = 60


class Failed(Exception):
    """A check that did not hold."""


def check(claim, held, seen=None):
    if not held:
        raise Failed(f"{claim}\n  seen: {seen!r}")
    print(f"ok: {claim}", flush=True)


class Place:
    """A folder of its own: the servers' files, the configuration layers, the gateway's log."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.files = self.folder / "files"
        self.files.mkdir()
        (self.files / "here.txt").write_text("it is here\n")
        user = self.folder / "config" / "portcullis"
        user.mkdir(parents=True)
        (user / "config.toml").write_text(self.servers())
        # Less trusted than the user's layer: it may tighten, and does.
        self.session = self.folder / "session.toml"
        self.session.write_text('[mcp_servers.filesystem]\ndefault_tools_approval_mode = "writes"\n')
        self.managed = self.folder / "managed.toml"
        self.managed.write_text('approval_policy = "never"\n')
        self.log = self.folder / "log.jsonl"
        self.stderr = self.folder / "stderr.txt"
        # Layer files that others could write are refused (R6).
        for file in (user / "config.toml", self.session, self.managed):
            file.chmod(0o600)

    def servers(self):
        def server(name, command, *args, more=""):
            return f"[mcp_servers.{name}]\ncommand = {json.dumps(str(command))}\nargs = {json.dumps([str(a) for a in args])}\n{more}\n"

        modules = INSTALLED / "npm/node_modules/@modelcontextprotocol"
        python = INSTALLED / "venv/bin/python"
        freely = 'default_tools_approval_mode = "approve"\n'
        return "".join(
            [
                server("everything", "node", modules / "server-everything/dist/index.js", "stdio", more=freely),
                server("filesystem", "node", modules / "server-filesystem/dist/index.js", self.files),
                server("time", INSTALLED / "venv/bin/mcp-server-time", "--local-timezone", "UTC"),
                server("odd", python, HERE / "odd_server.py", more=freely),
                server("noisy", python, HERE / "odd_server.py", "--rubbish", more=freely),
                # Can never start, and must not matter to the others.
                server("ghost", self.folder / "no-such-program"),
            ]
        )

    def environment(self):
        kept = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        return kept | {"XDG_CONFIG_HOME": str(self.folder / "config"), "XDG_STATE_HOME": str(self.folder / "state")}

    def serve(self, *more):
        return ["serve", "--config", str(self.session), "--log", str(self.log), *more]


class Person:
    """Whoever sits in front of the client: answers as told, and keeps the questions."""

    def __init__(self):
        self.word = "decline"
        self.questions = []

    async def answer(self, _context, params):
        self.questions.append(params)
        offered = params.requested_schema["properties"]["decision"]["enum"]
        if self.word not in offered:
            raise Failed(f"`{self.word}` was not offered\n  seen: {offered!r}")
        return types.ElicitResult(action="accept", content={"decision": self.word})


class Gate:
    """A running gateway and the client in front of it."""

    def __init__(self, session, person, pid):
        self.session, self.person, self.pid = session, person, pid
        self.list_changed = anyio.Event()

    async def heard(self, message):
        if isinstance(message, types.ToolListChangedNotification):
            self.list_changed.set()

    async def names(self):
        names, cursor = set(), None
        while True:
            page = await self.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            names |= {tool.name for tool in page.tools}
            if (cursor := page.next_cursor) is None:
                return names

    async def names_with(self, wanted):
        """Lists, and again whenever the gateway says that the list changed, until all wanted tools are there."""
        with anyio.move_on_after(PATIENCE):
            while True:
                self.list_changed = anyio.Event()
                names = await self.names()
                if wanted <= names:
                    return names
                await self.list_changed.wait()
        raise Failed(f"not all tools were listed within {PATIENCE} s\n  missing: {sorted(wanted - await self.names())}")

    async def call(self, name, arguments=None, **more):
        with anyio.move_on_after(PATIENCE):
            return await self.session.call_tool(name, arguments, **more)
        raise Failed(f"the call of {name} was not answered within {PATIENCE} s")

    async def text(self, name, arguments=None, **more):
        return said(await self.call(name, arguments, **more))


def said(result):
    return "".join(block.text for block in result.content if block.type == "text")


def code(result):
    return ((result.meta or {}).get(REFUSAL) or {}).get("code")


@asynccontextmanager
async def gateway(place, *more, can_ask=True):
    person = Person()
    # The transport reads stderr's file descriptor, so it gets a real file.
    with place.stderr.open("a") as errors:
        launch = StdioServerParameters(
            command=BINARY, args=place.serve(*more), env=place.environment(), cwd=place.folder
        )
        async with stdio_client(launch, errlog=errors) as (read, write):
            gate = Gate(None, person, gateway_pid())
            answer = person.answer if can_ask else None
            async with ClientSession(read, write, elicitation_callback=answer, message_handler=gate.heard) as session:
                gate.session = session
                with anyio.fail_after(PATIENCE):
                    gate.initialized = await session.initialize()
                yield gate


def gateway_pid():
    mine = [p.pid for p in processes.all_processes().values() if p.parent == os.getpid() and " serve " in p.command]
    if len(mine) != 1:
        raise Failed(f"the gateway's process was not found\n  seen: {mine!r}")
    return mine[0]


async def gone(family, seconds):
    """Waits until all of them have ended; returns those that have not."""
    end = time.monotonic() + seconds
    while (left := processes.alive(family)) and time.monotonic() < end:
        await anyio.sleep(0.05)
    return left


EXPECTED = {
    "everything__echo",
    "everything__get_sum",
    "everything__trigger_long_running_operation",
    "filesystem__list_directory",
    "filesystem__read_text_file",
    "filesystem__write_file",
    "time__convert_time",
    "time__get_current_time",
    "odd__say",
    "odd__die",
    "odd__wait",
    "odd__cancelled",
    "noisy__say",
}


async def lists(gate):
    version = gate.initialized.protocol_version
    check("the handshake is the legacy one", version == "2025-11-25", version)
    names = await gate.names_with(EXPECTED)
    check("the tools of all servers are listed under their flat names", EXPECTED <= names, names)
    alphabet = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
    legal = [name for name in names if set(name) <= alphabet and len(name) <= 46]
    check("every name is one that models can send", len(legal) == len(names), sorted(names - set(legal)))
    await gate.session.send_ping()
    check("a ping is answered", True)
    check("a server that cannot start has no tools", not [name for name in names if name.startswith("ghost")], names)


async def calls(gate, place):
    text = await gate.text("everything__echo", {"message": "grüße"})
    check("everything: echo answers", text == "Echo: grüße", text)
    text = await gate.text("everything__get_sum", {"a": 2, "b": 40})
    check("everything: get-sum answers", text == "The sum of 2 and 40 is 42.", text)
    result = await gate.call("time__get_current_time", {"timezone": "UTC"})
    told = json.loads(said(result))["timezone"]
    check("time: get_current_time answers", not result.is_error and told == "UTC", result)
    result = await gate.call("filesystem__list_directory", {"path": str(place.files)})
    check("filesystem: list_directory answers", said(result) == "[FILE] here.txt", result)
    structured = result.structured_content
    check("structured content passes through", structured == {"content": "[FILE] here.txt"}, structured)
    result = await gate.call("filesystem__read_text_file", {"path": "/etc/passwd"})
    check("a tool's own error stays one", result.is_error and code(result) is None, result)
    result = await gate.call("filesystem__no_such_tool")
    check("an unknown tool is refused in-band", result.is_error and code(result) == "not-available", result)
    check("nobody was asked about any of these", not gate.person.questions, gate.person.questions)


async def progresses(gate):
    steps = []

    async def progressed(progress, total, _message):
        steps.append((progress, total))

    arguments = {"duration": 1, "steps": 5}
    name = "everything__trigger_long_running_operation"
    text = await gate.text(name, arguments, progress_callback=progressed)
    check("a long operation answers", text.startswith("Long running operation completed"), text)
    check("its progress came, in order, to the end", steps == [(float(n), 5.0) for n in range(1, 6)], steps)


async def cancels(gate):
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def waits():
            with scope:
                await gate.session.call_tool("odd__wait")

        group.start_soon(waits)
        # The server answers in order, so this one is answered when the other has arrived.
        await gate.text("odd__say", {"text": "there"})
        scope.cancel()
    with anyio.move_on_after(PATIENCE):
        while (text := await gate.text("odd__cancelled")) != "1":
            await anyio.sleep(0.05)
    check("a cancelled call is cancelled at its server", text == "1", text)

    begun = anyio.Event()

    async def progressed(*_):
        begun.set()

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()

        async def works():
            with scope:
                arguments = {"duration": 60, "steps": 120}
                name = "everything__trigger_long_running_operation"
                await gate.session.call_tool(name, arguments, progress_callback=progressed)

        group.start_soon(works)
        with anyio.fail_after(PATIENCE):
            await begun.wait()
        scope.cancel()
    text = await gate.text("everything__echo", {"message": "still here"})
    check("after a call was cancelled in the middle its server answers", text == "Echo: still here", text)


async def asks(gate, place):
    file = place.files / "written.txt"
    arguments = {"path": str(file), "content": "by agreement"}
    gate.person.word = "decline"
    result = await gate.call("filesystem__write_file", arguments)
    check("a write that is declined is refused in-band", result.is_error and code(result) == "declined", result)
    check("and did not happen", not file.exists())
    check("the question names the tool", "write_file" in gate.person.questions[-1].message, gate.person.questions)
    offered = gate.person.questions[-1].requested_schema["properties"]["decision"]["enum"]
    check("the session layer's `writes` offers no remembering", offered == ["allow", "decline"], offered)
    gate.person.word = "allow"
    result = await gate.call("filesystem__write_file", arguments)
    check("a write that is agreed to runs", not result.is_error, result)
    check("and happened", file.read_text() == "by agreement", file.read_text())
    check("each was asked about once", len(gate.person.questions) == 2, gate.person.questions)


async def survives(gate):
    result = await gate.call("odd__die")
    lost = result.is_error and code(result) == "ambiguous"
    check("a server that ends in the middle of a call: the call says that it may have run", lost, result)
    await recovers(gate, "odd__say", {"text": "again"}, "again")

    begun, results = anyio.Event(), []

    async def progressed(*_):
        begun.set()

    async def works():
        arguments = {"duration": 60, "steps": 120}
        name = "everything__trigger_long_running_operation"
        results.append(await gate.call(name, arguments, progress_callback=progressed))

    async with anyio.create_task_group() as group:
        group.start_soon(works)
        with anyio.fail_after(PATIENCE):
            await begun.wait()
        victims = [p for p in processes.below(gate.pid) if "server-everything" in p.command]
        check("the server's process is below the gateway's", len(victims) == 1, victims)
        os.kill(victims[0].pid, signal.SIGKILL)
    lost = results[0].is_error and code(results[0]) == "ambiguous"
    check("a server that is killed in the middle of a call: likewise", lost, results)
    text = await gate.text("time__convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "UTC"})
    check("the other servers go on", "12:00" in text, text)
    await recovers(gate, "everything__echo", {"message": "again"}, "Echo: again")


async def recovers(gate, name, arguments, wanted):
    """The next call waits until the server has been started anew."""
    result = await gate.call(name, arguments)
    check(f"and is back for the next call ({name})", said(result) == wanted, result)


async def hears_no_rubbish(gate):
    for n in range(3):
        text = await gate.text("noisy__say", {"text": f"clear {n}"})
        check(f"a server that writes rubbish to stdout is understood ({n + 1} of 3)", text == f"clear {n}", text)


async def calls_at_once(gate):
    wrong = []

    async def one(n):
        match n % 4:
            case 0:
                text, wanted = await gate.text("everything__echo", {"message": f"m{n}"}), f"Echo: m{n}"
            case 1:
                text = await gate.text("everything__get_sum", {"a": n, "b": 1000})
                wanted = f"The sum of {n} and 1000 is {n + 1000}."
            case 2:
                text, wanted = await gate.text("odd__say", {"text": f"s{n}"}), f"s{n}"
            case _:
                text, wanted = await gate.text("noisy__say", {"text": f"r{n}"}), f"r{n}"
        if text != wanted:
            wrong.append((n, text, wanted))

    begun = time.monotonic()
    async with anyio.create_task_group() as group:
        for n in range(64):
            group.start_soon(one, n)
    took = time.monotonic() - begun
    check(f"64 calls at once, each with its own answer ({took:.2f} s)", not wrong, wrong)


async def with_a_person(place):
    async with gateway(place) as gate:
        await lists(gate)
        await calls(gate, place)
        await progresses(gate)
        await cancels(gate)
        await asks(gate, place)
        await hears_no_rubbish(gate)
        await calls_at_once(gate)
        await survives(gate)
        family = processes.below(gate.pid)
        check("gateway and servers are there", len(family) >= 6, family)
    left = await gone(family, 10)
    check("after the client has gone no process is left", not left, left)


async def without_a_person(place):
    file = place.files / "alone.txt"
    async with gateway(place, can_ask=False) as gate:
        await gate.names_with({"filesystem__write_file"})
        result = await gate.call("filesystem__write_file", {"path": str(file), "content": "no"})
        refused = result.is_error and code(result) == "nobody-to-ask"
        check("a client that cannot ask: the write is refused in-band", refused, result)
        check("and did not happen", not file.exists())
        family = processes.below(gate.pid)
    check("no process is left", not await gone(family, 10))


async def managed(place):
    file = place.files / "managed.txt"
    async with gateway(place, "--managed", str(place.managed)) as gate:
        gate.person.word = "allow"
        await gate.names_with({"filesystem__write_file", "filesystem__list_directory"})
        result = await gate.call("filesystem__write_file", {"path": str(file), "content": "no"})
        refused = result.is_error and code(result) == "never-asks"
        check("a managed layer that never asks: the write is refused in-band", refused, result)
        check("nobody was asked", not gate.person.questions, gate.person.questions)
        check("and it did not happen", not file.exists())
        result = await gate.call("filesystem__list_directory", {"path": str(place.files)})
        check("what only reads still runs", not result.is_error, result)
        family = processes.below(gate.pid)
    check("no process is left", not await gone(family, 10))


HANDSHAKE = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "by-hand", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
)


async def ends(place, how):
    """Ends the gateway without the SDK, which would hide its exit code."""
    with place.stderr.open("a") as errors:
        gate = subprocess.Popen(
            [BINARY, *place.serve()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=place.folder,
            env=place.environment(),
        )
        try:
            gate.stdin.write("".join(json.dumps(message) + "\n" for message in HANDSHAKE).encode())
            gate.stdin.flush()
            answers = []
            while len(answers) < 2:
                message = json.loads(gate.stdout.readline())
                answers += [message["id"]] if "id" in message else []
            family = processes.below(gate.pid)
            if how == "the end of its input":
                gate.stdin.close()
            else:
                gate.send_signal(signal.SIGTERM)
            status = gate.wait(timeout=20)
            for line in gate.stdout:
                json.loads(line)
        finally:
            gate.kill()
            gate.wait()
    check(f"{how} ends the gateway with exit code 0", status == 0, status)
    left = await gone(family, 10)
    check(f"no process is left after {how}", not left, left)


def recorded(place):
    lines = [json.loads(line) for line in place.log.read_text().splitlines()]
    check("the log file holds one JSON value a line", len(lines) > 100, len(lines))
    check("and no arguments", "by agreement" not in place.log.read_text())


async def everything(place):
    await with_a_person(place)
    await without_a_person(place)
    await managed(place)
    await ends(place, "the end of its input")
    await ends(place, "SIGTERM")
    recorded(place)


def root_cause(error):
    """The first failure inside of the groups that task groups make."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    return error


def too_long(*_):
    print(f"FAILED: not done within {OVERALL} s", file=sys.stderr, flush=True)
    # Not an exception: whatever hangs might catch it. The gateway ends with its input.
    os._exit(1)


def main():
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(OVERALL)
    with tempfile.TemporaryDirectory(prefix="portcullis-e2e-") as folder:
        place = Place(folder)
        try:
            anyio.run(everything, place)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told and the run has failed
            error = root_cause(error)
            print(f"FAILED: {error}" if isinstance(error, Failed) else "FAILED:", file=sys.stderr)
            if not isinstance(error, Failed):
                traceback.print_exception(error)
            if place.stderr.exists():
                print("--- stderr of the gateway, last lines", *place.stderr.read_text().splitlines()[-40:], sep="\n", file=sys.stderr)
            return 1
    print("all checks hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
