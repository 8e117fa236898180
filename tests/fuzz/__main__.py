"""`python -m tests.fuzz [TARGET …] [--seconds 60]`: feed the targets, count the executions, stop at the first crash.

With atheris the code is instrumented and inputs grow by coverage; each target then runs in a process of its own.
Without it, or with `--plain`, inputs are seeds changed at random.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

MAX_SECONDS = 1.0
"""An input that computes longer is a hang. The clock is that of the process: others want the machine too."""

MAX_WAIT_SECONDS = 30
"""An input that waits longer, for a lock or a thread, is one as well, however busy the machine is."""

_PIECES = (
    b"\0",
    b"\xff\xfe",
    b'"',
    b"\\",
    b"{",
    b"[" * 200,
    b"NaN",
    b"1e400",
    b"9" * 5000,
    b"../",
    b"\xed\xa0\x80",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without atheris, even where it is installed")
    parser.add_argument("--instrumented", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.instrumented:
        return _instrumented(options.targets[0], options.seconds, options.seed)
    from tests.fuzz.targets import TARGETS

    for name in options.targets or TARGETS:
        if find_spec("atheris") is not None and not options.plain:
            print(f"{name}: {_with_atheris(name, options.seconds, options.seed)}", flush=True)
        else:
            print(f"{name}: {plain(name, options.seconds, options.seed)}", flush=True)
    return 0


def plain(name: str, seconds: float, seed: int) -> str:
    """Run a target on seeds changed at random; how often, and what it took."""
    from tests.fuzz.targets import SEEDS, TARGETS

    target, chooser = TARGETS[name], random.Random(seed)
    for data in SEEDS[name]:
        target(data)  # what is imported late takes longer than any input
    until, count, slowest = time.monotonic() + seconds, 0, 0.0
    while time.monotonic() < until:
        data = changed(chooser.choice(SEEDS[name]), chooser)
        try:
            slowest = max(slowest, timed(target, data))
        except Exception as exc:
            raise AssertionError(f"{name} on {data[:500]!r}") from exc
        count += 1
    return f"{count} executions, the slowest {slowest * 1000:.0f} ms, {_peak_mb()} MB at most"


def timed(target: Callable[[bytes], None], data: bytes) -> float:
    """Run a target; the seconds that it computed."""
    started = time.process_time()
    target(data)
    seconds = time.process_time() - started
    assert seconds < MAX_SECONDS, f"it took {seconds:.1f} s"
    return seconds


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def changed(data: bytes, chooser: random.Random) -> bytes:
    """The data after a few changes."""
    content = bytearray(data)
    for _ in range(chooser.randrange(1, 6)):
        at = chooser.randrange(len(content) + 1)
        match chooser.randrange(5):
            case 0 if content:
                content[at % len(content)] ^= 1 << chooser.randrange(8)
            case 1:
                content[at:at] = chooser.choice(_PIECES)
            case 2:
                del content[at : at + chooser.randrange(1, 8)]
            case 3:
                content[at:at] = content[: chooser.randrange(len(content) + 1)]
            case _:
                content[at:at] = chooser.randbytes(chooser.randrange(1, 5))
    return bytes(content[: 1 << 16])


def _with_atheris(name: str, seconds: float, seed: int) -> str:
    command = [sys.executable, "-m", "tests.fuzz", name, "--instrumented"]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{name}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    found = dict(re.findall(r"^stat::(\w+): +(\d+)", done.stderr, re.MULTILINE))
    slowest = re.findall(r"^the slowest (\d+) ms", done.stderr, re.MULTILINE)[-1]
    return (
        f"{int(found['number_of_executed_units']):,} executions in {seconds:.0f} s, "
        f"the slowest {slowest} ms, {found['peak_rss_mb']} MB at most"
    )


def _instrumented(name: str, seconds: float, seed: int) -> int:
    import tempfile
    from pathlib import Path

    import atheris

    with atheris.instrument_imports(include=["stepkeep"]):
        from tests.fuzz.targets import MAX_BYTES, SEEDS, TARGETS
    slowest = 0.0

    def one(data: bytes) -> None:
        nonlocal slowest
        if (seconds := timed(TARGETS[name], data)) > slowest:  # told at once: atheris ends the process itself
            slowest = seconds
            print(f"the slowest {seconds * 1000:.0f} ms", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="stepkeep-corpus-") as corpus:
        for number, data in enumerate(SEEDS[name]):
            (Path(corpus) / str(number)).write_bytes(data)
            TARGETS[name](data)  # what is imported late takes longer than any input
        arguments = [
            f"-max_total_time={round(seconds)}",
            f"-seed={seed}",
            f"-max_len={MAX_BYTES}",
            f"-timeout={MAX_WAIT_SECONDS}",
            "-print_final_stats=1",
            "-rss_limit_mb=2048",
            f"-artifact_prefix={corpus}/",
        ]
        atheris.Setup(["fuzz", *arguments, corpus], one)
        atheris.Fuzz()
    return 0  # not reached: atheris ends the process itself


if __name__ == "__main__":
    sys.exit(main())
