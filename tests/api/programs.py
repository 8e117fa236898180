"""Programs that the tests run in processes of their own, and how they are run.

`python programs.py NAME [JSON …]` calls the function of that name; what it returns is printed as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

import stepkeep

PROGRAM = Path(__file__)
SOURCE = Path(stepkeep.__file__).parent.parent
TIMEOUT_SECONDS = 120


# --- in the test -----------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment in which a child finds the package under test, and no store but the one it is given."""
    kept = {name: value for name, value in os.environ.items() if name != "STEPKEEP_STORE"}
    return {**kept, "PYTHONPATH": str(SOURCE)}


def start(program: Callable[..., object], *arguments: object) -> subprocess.Popen[str]:
    """Start a program of this module in a new process."""
    from tests import interpreter  # not there in the new process

    words = [str(PROGRAM), program.__name__, *(json.dumps(value) for value in arguments)]
    return interpreter.start(words, stdout=subprocess.PIPE, text=True, env=environment())


def finish(process: subprocess.Popen[str]) -> Any:
    """What a started program returned."""
    try:
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, f"the child ended with {process.returncode}"
    return json.loads(output.splitlines()[-1])


def run(program: Callable[..., object], *arguments: object) -> Any:
    """What a program of this module returns when it runs in a new process."""
    return finish(start(program, *arguments))


@contextmanager
def raw(path: Path) -> Iterator[apsw.Connection]:
    """The database itself, past the code under test. Durability does not matter here, so it is off."""
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(10_000)
        connection.execute("PRAGMA synchronous = OFF").fetchall()
        yield connection
    finally:
        connection.close()


def rows(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of one statement."""
    return connection.execute(sql, values).fetchall()


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """`data` with one bit changed."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def stored_bytes(directory: Path) -> dict[str, bytes]:
    """Every file under a directory. Only for a store that no connection of this process has open."""
    return {str(file): file.read_bytes() for file in sorted(directory.rglob("*")) if file.is_file()}


def state_of(writer: object, number: int) -> dict[str, Any]:
    """A state that grows with its number, as a conversation does."""
    return {"writer": writer, "n": number, "log": [f"line {line} of {writer}" for line in range(number % 50)]}


# --- in the child ----------------------------------------------------------------------------------------------


def survey(url: str, key: str) -> dict[str, Any]:
    """Everything in a session, oldest first, loaded and verified."""
    with stepkeep.open(url) as store:
        session = store.get(key)
        headers = list(session.history(newest_first=False))
        report = session.verify()
        latest = session.latest()
        return {
            "ids": [header.id for header in headers],
            "seqs": [header.seq for header in headers],
            "states": [store.checkpoint(header.id).state for header in headers],
            "checkpoints": report.checkpoints,
            "findings": [finding.message for finding in report.findings],
            "latest": None if latest is None else latest.seq,
            "uid": session.uid,
            "status": session.info.status,
        }


def save_many(url: str, key: str, writer: object, count: int, profile: str = "archive") -> list[int]:
    """Save `count` states; the numbers they got."""
    with stepkeep.open(url) as store:
        session = store.session(key, profile=profile)
        return [session.save(state_of(writer, number)).seq for number in range(count)]


def save_until_killed(url: str, key: str, round_: int) -> None:
    """Save for ever; `ACK seq n` is written once the save has returned."""
    with stepkeep.open(url) as store:
        session = store.session(key, profile="archive")
        for number in range(1_000_000):
            header = session.save(state_of(round_, number))
            os.write(1, f"ACK {header.seq} {number}\n".encode())


def save_with_key(url: str, key: str, idempotency_key: str, state: object) -> list[Any]:
    """Save once with an idempotency key; the id, seq or the code of the refusal."""
    with stepkeep.open(url) as store:
        try:
            header = store.session(key).save(state, idempotency_key=idempotency_key)
        except stepkeep.Conflict as exc:
            return ["conflict", exc.code]
        return [header.id, header.seq]


def save_in_background(url: str, key: str, count: int) -> int:
    """Queue saves and leave the `with` block at once, asking for no result."""
    with stepkeep.open(url) as store:
        session = store.session(key, profile="archive")
        for number in range(count):
            session.save(state_of("background", number), wait=False)
    return count


def outcome(url: str, key: str, uid: int | None = None) -> dict[str, Any]:
    """Open a store and save once, perhaps as another user; the error's class and code where it fails."""
    stepkeep.open("memory:").close()  # everything is loaded: another user may not read where it lies
    if uid is not None:
        os.setgid(uid)
        os.setuid(uid)
    try:
        with stepkeep.open(url) as store:
            return {"seq": store.session(key).save({"n": 1}).seq}
    except stepkeep.StepkeepError as exc:
        return {"error": type(exc).__name__, "code": exc.code, "retryable": exc.retryable}


def save_under_size_limit(url: str, key: str, limit: int) -> dict[str, Any]:
    """Save ever larger states until the file size limit refuses one; the codes, and what is there afterwards."""
    import random
    import resource

    random.seed(7)
    codes: list[str] = []
    acknowledged = 0
    with stepkeep.open(url) as store:
        session = store.session(key)
        session.save({"n": 0})
        acknowledged = 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        for number in range(1, 60):
            try:
                session.save({"n": number, "noise": random.randbytes(8192).hex()})
                acknowledged += 1
            except stepkeep.StepkeepError as exc:
                codes.append(f"{type(exc).__name__} {exc.code}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        after = session.save({"n": "after"}).seq
        return {"codes": sorted(set(codes)), "acknowledged": acknowledged, "after": after}


def fork_savers(url: str, key: str, children: int, saves: int, with_threads: bool) -> dict[str, int]:
    """A parent with saving threads forks children that save through the same `Store`; it waits for them."""
    import threading

    stop = threading.Event()
    counts = [0] * 3
    with stepkeep.open(url) as store:
        session = store.session(key, profile="archive")
        session.save(state_of("parent", 0))

        def work(which: int) -> None:
            while not stop.is_set():
                session.save(state_of(f"thread {which}", counts[which]))
                counts[which] += 1

        threads = [threading.Thread(target=work, args=(which,)) for which in range(3)] if with_threads else []
        for thread in threads:
            thread.start()
        pids = []
        for child in range(children):
            pid = os.fork()
            if pid == 0:
                _in_fork(lambda child=child: _save_in_child(store, session, child, saves))  # type: ignore[misc]
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        stop.set()
        for thread in threads:
            thread.join()
        session.save(state_of("parent", 1))
    return {"failed": sum(code != 0 for code in codes), "saved": 2 + sum(counts) + children * saves}


def _in_fork(work: Callable[[], None]) -> None:
    """Run `work` in a forked child and end there."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _save_in_child(store: stepkeep.Store, session: stepkeep.Session, child: int, saves: int) -> None:
    for number in range(saves):
        session.save(state_of(f"child {child}", number))
    store.close()


def multiprocessing_savers(url: str, key: str, children: int, saves: int) -> dict[str, int]:
    """The same through `multiprocessing` with its fork method."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    with stepkeep.open(url) as store:
        session = store.session(key, profile="archive")
        session.save(state_of("parent", 0))
        processes = [
            context.Process(target=_save_in_child, args=(store, session, child, saves))
            for child in range(children)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        session.save(state_of("parent", 1))
    return {
        "failed": sum(process.exitcode != 0 for process in processes),
        "saved": 2 + children * saves,
    }


def daemon(url: str, key: str, gate: str, saves: int) -> int:
    """The parent ends without closing, at once; the child goes on saving through its `Store` when the gate opens."""
    store = stepkeep.open(url)
    session = store.session(key, profile="archive")
    session.save(state_of("parent", 0))
    pid = os.fork()
    if pid == 0:
        os.close(1)
        _in_fork(lambda: _save_after_gate(store, session, Path(gate), saves))
    return pid


def _save_after_gate(store: stepkeep.Store, session: stepkeep.Session, gate: Path, saves: int) -> None:
    for number in range(saves // 2):
        session.save(state_of("daemon", number))
    while not gate.exists():
        time.sleep(0.002)
    for number in range(saves // 2, saves):
        session.save(state_of("daemon", number))
    store.close()
    gate.with_suffix(".done").touch()


def fork_with_a_queued_save(url: str, key: str) -> dict[str, Any]:
    """A save that is queued and not committed when the process forks is the parent's; the child learns so."""
    from stepkeep.engine import Save

    with stepkeep.open(url) as store:
        session = store.session(key)
        engine = store.engine
        pending = engine.submit(Save(session=session.uid, state={"n": 1}))
        pid = os.fork()
        if pid == 0:
            import signal

            signal.alarm(10)
            _in_fork(lambda: _expect_refusal(pending))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {"child": code, "seq": pending.result().seq}


def _expect_refusal(pending: stepkeep.Pending) -> None:
    try:
        pending.result()
    except stepkeep.StepkeepError:
        return
    raise AssertionError("the child was told that the parent's save is durable")


def fork_while_opening(url: str, key: str) -> int:
    """Fork while a thread is in the middle of opening the store; the child lives on. Its pid."""
    import threading

    from stepkeep.storage import sqlite

    stepkeep.open(url).close()
    entered, go_on = threading.Event(), threading.Event()
    check = sqlite._check_schema

    def slow_check(*arguments: Any) -> None:
        entered.set()
        go_on.wait(2)
        check(*arguments)

    sqlite._check_schema = slow_check  # type: ignore[assignment]
    opened: list[stepkeep.Store] = []
    thread = threading.Thread(target=lambda: opened.append(stepkeep.open(url)))
    thread.start()
    entered.wait(10)
    pid = os.fork()
    if pid == 0:
        os.close(1)
        time.sleep(20)
        os._exit(0)
    go_on.set()
    thread.join()
    opened[0].session(key).save({"n": 1})
    opened[0].close()
    return pid


def close_after_failed_connection(url: str, key: str) -> str:
    """Run out of file descriptors while reading, recover, and close."""
    import resource
    import threading

    store = stepkeep.open(url)
    session = store.session(key)
    session.save({"n": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    backend: Any = store.engine.backend
    # A second reader at the same time needs a connection of its own, and there is no descriptor left for it.
    reader = backend._take_reader()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        store.usage()
    except stepkeep.BackendUnavailable as exc:
        code = exc.code
    else:
        code = "no failure"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    backend._give_back(reader)
    closing = threading.Thread(target=store.close, daemon=True)
    closing.start()
    closing.join(5)
    return f"{code}, close hangs" if closing.is_alive() else code


def verify_within(url: str, key: str) -> int:
    """How many findings `verify` has."""
    with stepkeep.open(url) as store:
        return len(store.session(key).verify().findings)


def main(name: str, *arguments: str) -> None:
    result = globals()[name](*(json.loads(argument) for argument in arguments))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
