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


FORKING = """
import os, threading
from stepkeep.processes import tell_of_forks
from stepkeep import typed
import msgspec

class New(msgspec.Struct):
    a: int

begun, done = threading.Event(), threading.Event()

class Holder:
    def before_fork(self):
        begun.set()
        if not done.wait(30):
            os._exit(3)

    def after_fork(self, *, is_child):
        pass

def save():
    begun.wait()
    typed.convert({"a": 1}, New)
    done.set()

holder = Holder()
tell_of_forks(holder)
threading.Thread(target=save).start()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_waits_for_no_thread_that_meets_a_type() -> None:
    """A fork waits until saves are settled, and one of them may meet a type for the first time meanwhile."""
    assert interpreter.python("-c", FORKING).returncode == 0
