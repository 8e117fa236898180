"""Types that several threads meet for the first time."""

from __future__ import annotations

from tests import interpreter

PROGRAM = '''
import sys, threading, types
from stepkeep import typed

sys.setswitchinterval(1e-6)
SOURCE = """
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct):
    a: str
    b: int | None = None
class Outer(msgspec.Struct):
    x: str
    y: tuple[Inner, ...] = ()
    z: dict[str, Inner] = {}
"""
for number in range(200):
    module = types.ModuleType(f"module_{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    barrier = threading.Barrier(4)

    def meet(outer=module.Outer):
        barrier.wait()
        assert typed.convert({"x": "1", "y": [{"a": "q"}]}, outer).y[0].a == "q"
        assert typed.from_json(b'{"x": "1"}', outer).x == "1"

    threads = [threading.Thread(target=meet) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
print("all met")
'''


def test_threads_meet_a_type_for_the_first_time_together() -> None:
    """Threads that decode into a new type in the same moment get their values; the process goes on."""
    done = interpreter.python("-c", PROGRAM)
    assert (done.returncode, done.stdout) == (0, b"all met\n")
