"""Answers approvals with the official Python SDK's client, over stdio, in both eras of the protocol.

Needs in its environment: PORTCULLIS_BIN (the binary). Prints a line for each check; ends with 1 at the first that fails, and
says what was seen.
"""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

BINARY = os.environ["PORTCULLIS_BIN"]
HERE = Path(__file__).resolve().parent
REFUSAL = "portcullis/refusal"
MODERN = "2026-07-28"
# A hang must end; nothing here takes long.
OVERALL = 240
PATIENCE = 60
TOOL = "odd__say"
KEY = "a key of the test"


class Failed(Exception):
    """A check that did not hold."""


def check(claim, held, seen=None):
    if not held:
        raise Failed(f"{claim}\n  seen: {seen!r}")
    print(f"ok: {claim}", flush=True)


class Place:
    """A folder with a server that says nothing of its tools, so that each is asked about."""

    def __init__(self, folder, ask_timeout, queue=False):
        self.folder = Path(folder).resolve()
        user = self.folder / "config" / "portcullis"
        user.mkdir(parents=True)
        config = user / "config.toml"
        config.write_text(
            f"[limits]\nask_timeout_sec = {ask_timeout}\n\n"
            f"{'[approvals]' if queue else ''}\n{'queue = true' if queue else ''}\n"
            f"[mcp_servers.odd]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(HERE / 'odd_server.py')])}\n"
        )
        # Layer files that others could write are refused (R6).
        config.chmod(0o600)
        self.log = self.folder / "log.jsonl"
        self.stderr = self.folder / "stderr.txt"
        self.pid = self.folder / "pid.txt"
        state = self.folder / "state" / "portcullis"
        state.mkdir(parents=True, mode=0o700)
        key = state / "approver.key"
        key.touch(mode=0o600)
        key.write_text(hashlib.sha256(KEY.encode()).hexdigest() + "\n")

    def approvals(self, *args, key=None):
        """Runs `approvals` in a process of its own, without a terminal; returns its exit code and what it printed."""
        environment = self.environment() | ({"PORTCULLIS_APPROVER_KEY": key} if key else {})
        command = [BINARY, "approvals", *args, "--format", "json"]
        ran = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, timeout=PATIENCE, start_new_session=True
        )
        return ran.returncode, (json.loads(ran.stdout) if ran.stdout.strip() else ran.stderr.decode())

    def environment(self):
        kept = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        return kept | {"XDG_CONFIG_HOME": str(self.folder / "config"), "XDG_STATE_HOME": str(self.folder / "state")}


@asynccontextmanager
async def gateway(place, mode, answer):
    with place.stderr.open("a") as errors:
        # Who is killed must be known.
        serve = f"echo $$ > {shlex.quote(str(place.pid))}; exec {shlex.quote(BINARY)} serve --log {shlex.quote(str(place.log))}"
        launch = StdioServerParameters(command="/bin/sh", args=["-c", serve], env=place.environment(), cwd=place.folder)
        async with Client(stdio_client(launch, errlog=errors), mode=mode, elicitation_callback=answer) as client:
            with anyio.fail_after(PATIENCE):
                while TOOL not in [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]:
                    await anyio.sleep(0.05)
            yield client


async def say(client, text):
    with anyio.fail_after(PATIENCE):
        return await client.call_tool(TOOL, {"text": text})


def said(result):
    return "".join(block.text for block in result.content if block.type == "text")


def code(result):
    return ((result.meta or {}).get(REFUSAL) or {}).get("code")


def choose(word):
    return types.ElicitResult(action="accept", content={"decision": word})


async def answers(place, mode):
    """One answer after the other, in one session."""
    asked = []
    given = {}

    async def answer(_context, params):
        asked.append(params)
        return given["answer"]

    async with gateway(place, mode, answer) as client:
        version = client.protocol_version
        check(f"{mode}: the era is the one wanted", (version == MODERN) == (mode != "legacy"), version)
        rows = [
            ("accept with an offered choice", choose("allow"), None),
            ("decline", types.ElicitResult(action="decline"), "declined"),
            ("cancel", types.ElicitResult(action="cancel"), "ask-cancelled"),
            ("accept with a choice that was not offered", choose("maybe"), "declined"),
            ("accept with other members", types.ElicitResult(action="accept", content={"x": "allow"}), "declined"),
            ("accept with nothing", types.ElicitResult(action="accept"), "declined"),
        ]
        for number, (claim, given["answer"], expected) in enumerate(rows, 1):
            result = await say(client, claim)
            right = code(result) == expected and (expected or said(result) == claim)
            check(f"{mode}: {claim}: {expected or 'the call runs'}", right, result)
            check(f"{mode}: {claim}: asked once", len(asked) == number, len(asked))
        check(f"{mode}: the question names the tool and the server", "`say` on the server `odd`" in asked[0].message, asked[0])
        given["answer"] = choose("allow-for-session")
        await say(client, "remember")
        await say(client, "remembered")
        check(f"{mode}: an agreement for the session is not asked about again", len(asked) == len(rows) + 1, len(asked))


async def at_once(place, mode):
    """Two questions are open together, and the second is answered first."""
    done = {}
    both = anyio.Event()
    first_may = anyio.Event()
    open_now = []

    async def answer(_context, params):
        open_now.append(params)
        if len(open_now) == 2:
            both.set()
        with anyio.fail_after(PATIENCE):
            await both.wait()
            if "call-one" in params.message:
                await first_may.wait()
                return choose("allow")
        return types.ElicitResult(action="decline")

    async with gateway(place, mode, answer) as client:

        async def one(text):
            done[text] = await say(client, text)
            first_may.set()

        async with anyio.create_task_group() as group:
            group.start_soon(one, "call-one")
            group.start_soon(one, "call-two")
    check(f"{mode}: of two at once the one that was declined is refused", code(done["call-two"]) == "declined", done)
    check(f"{mode}: and the other, answered later, runs", said(done["call-one"]) == "call-one", done)


async def nobody(place, mode):
    async with gateway(place, mode, None) as client:
        result = await say(client, "hello")
        check(f"{mode}: a client that cannot be asked is refused", code(result) == "nobody-to-ask", result)


def expired(place):
    return '"ask-expired"' in place.log.read_text()


async def silence_legacy(place):
    async def answer(_context, _params):
        await anyio.sleep_forever()

    async with gateway(place, "legacy", answer) as client:
        result = await say(client, "hello")
        check("legacy: an answer that never comes ends the call at the deadline", code(result) == "ask-expired", result)


async def silence_modern(place):
    async def answer(_context, _params):
        raise Failed("the rounds are driven by hand here")

    async with gateway(place, MODERN, answer) as client:
        call = client.session.call_tool
        first = await call(TOOL, {"text": "hello"}, allow_input_required=True)
        question = isinstance(first, types.InputRequiredResult) and first.request_state
        check(f"{MODERN}: the question is the call's result", question, first)
        with anyio.fail_after(PATIENCE):
            while not expired(place):
                await anyio.sleep(0.05)
        check(f"{MODERN}: a client that never comes back: the call ends at the deadline", True)
        responses = {key: choose("allow") for key in first.input_requests}
        more = {"input_responses": responses, "request_state": first.request_state, "allow_input_required": True}
        try:
            late = await call(TOOL, {"text": "hello"}, **more)
        except MCPError as error:
            late = error
        check(f"{MODERN}: a late answer is refused", getattr(late, "code", None) == -32602, late)


async def replay(place):
    async def answer(_context, _params):
        raise Failed("the rounds are driven by hand here")

    async with gateway(place, MODERN, answer) as client:
        call = client.session.call_tool
        first = await call(TOOL, {"text": "once"}, allow_input_required=True)
        responses = {key: choose("allow") for key in first.input_requests}
        more = {"input_responses": responses, "request_state": first.request_state, "allow_input_required": True}

        async def refused(text):
            try:
                return await call(TOOL, {"text": text}, **more)
            except MCPError as error:
                return error

        other = await refused("another")
        check(f"{MODERN}: a state is no good for other arguments", getattr(other, "code", None) == -32602, other)
        result = await call(TOOL, {"text": "once"}, **more)
        check(f"{MODERN}: and still good for its own", said(result) == "once", result)
        again = await refused("once")
        check(f"{MODERN}: once", getattr(again, "code", None) == -32602, again)


async def pending(place, count):
    """Waits until so many questions wait in the queue; returns their ids, the oldest first."""
    with anyio.fail_after(PATIENCE):
        while True:
            code, found = await anyio.to_thread.run_sync(place.approvals, "list")
            if code == 0 and len(found) == count:
                return [ask["question"]["id"] for ask in reversed(found)]
            await anyio.sleep(0.1)


async def other_terminal(place, mode):
    """Two calls of a client that cannot be asked wait in the queue; another process answers them, the second one first."""
    done = {}
    async with gateway(place, mode, None) as client:

        async def one(text):
            done[text] = await say(client, text)

        async with anyio.create_task_group() as group:
            group.start_soon(one, "first")
            first = (await pending(place, 1))[0]
            group.start_soon(one, "second")
            second = (await pending(place, 2))[1]
            told = place.approvals("allow", second)
            check(f"{mode}: another process without the key allows nothing", told[0] == 3, told)
            told = place.approvals("allow", second, key=KEY)
            check(f"{mode}: with the key it allows", told[0] == 0, told)
            with anyio.fail_after(PATIENCE):
                while "second" not in done:
                    await anyio.sleep(0.02)
            check(f"{mode}: the call that was allowed runs while the other one waits", "first" not in done, done)
            told = place.approvals("deny", first)
            check(f"{mode}: a refusal needs no key", told[0] == 0, told)
    check(f"{mode}: the call that was allowed from another process has run", said(done["second"]) == "second", done)
    check(f"{mode}: the one that was refused has not", code(done["first"]) == "declined", done)


async def kill_and_restart(place, mode):
    """The host is killed while its question waits; the answer holds for the same call of the next host, once."""
    lost = []

    async def call_and_lose():
        try:
            async with gateway(place, mode, None) as client:

                async def call():
                    lost.append(await say(client, "again"))

                async with anyio.create_task_group() as group:
                    group.start_soon(call)
                    asked.extend(await pending(place, 1))
                    os.kill(int(place.pid.read_text()), signal.SIGKILL)
                    group.cancel_scope.cancel()
        except BaseException as error:  # noqa: BLE001 - however the SDK tells of a server that is gone
            if not isinstance(root_cause(error), Exception):
                raise
            lost.append(root_cause(error))

    asked = []
    await call_and_lose()
    check(f"{mode}: a question was open when the host was killed", len(asked) == 1, (asked, lost))
    check(f"{mode}: and its call came to no answer", not any(getattr(end, "content", None) for end in lost), lost)
    async with gateway(place, mode, None) as client:
        told = place.approvals("allow", asked[0], key=KEY)
        check(f"{mode}: the question outlives the host and is allowed", told[0] == 0, told)
        with anyio.fail_after(PATIENCE):
            # Until the lease of the host that is gone has ended, the answer is its own to take.
            while len((await anyio.to_thread.run_sync(place.approvals, "grants"))[1]) != 1:
                await anyio.sleep(0.2)
        result = await say(client, "again")
        check(f"{mode}: the same call runs under the next host without a question", said(result) == "again", result)
        grants = place.approvals("grants")
        check(f"{mode}: once", grants == (0, []), grants)


async def queue_beside_client(place, mode):
    """A client that can be asked, and does not answer: the queue answers for it."""
    forever = anyio.Event()

    async def answer(_context, _params):
        await forever.wait()
        return types.ElicitResult(action="decline")

    async with gateway(place, mode, answer) as client:
        done = []

        async def one():
            done.append(await say(client, "beside"))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            told = place.approvals("allow", (await pending(place, 1))[0], key=KEY)
            check(f"{mode}: what the client is asked can be allowed elsewhere", told[0] == 0, told)
            # In the stateless era the client comes back with its own answer, and finds that the call has run.
            if mode == MODERN:
                forever.set()
    check(f"{mode}: and the call runs", said(done[0]) == "beside", done)


async def everything(place_of):
    for mode in ("legacy", MODERN):
        await answers(place_of(600), mode)
        await at_once(place_of(600), mode)
        await nobody(place_of(600), mode)
        await other_terminal(place_of(600, queue=True), mode)
        await kill_and_restart(place_of(600, queue=True), mode)
        await queue_beside_client(place_of(600), mode)
    await answers(place_of(600), "auto")
    await silence_legacy(place_of(1))
    await silence_modern(place_of(1))
    await replay(place_of(600))


def root_cause(error):
    """The first failure inside of the groups that task groups make."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    return error


def too_long(*_):
    print(f"FAILED: not done within {OVERALL} s", file=sys.stderr, flush=True)
    os._exit(1)


def main():
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(OVERALL)
    with tempfile.TemporaryDirectory(prefix="portcullis-e2e-") as folder:
        places = []

        def place_of(ask_timeout, queue=False):
            places.append(Place(Path(folder) / str(len(places)), ask_timeout, queue))
            return places[-1]

        try:
            anyio.run(everything, place_of)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told and the run has failed
            error = root_cause(error)
            print(f"FAILED: {error}" if isinstance(error, Failed) else "FAILED:", file=sys.stderr)
            if not isinstance(error, Failed):
                traceback.print_exception(error)
            if places and places[-1].stderr.exists():
                told = places[-1].stderr.read_text().splitlines()[-40:]
                print("--- stderr of the gateway, last lines", *told, sep="\n", file=sys.stderr)
            return 1
    print("all checks hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
