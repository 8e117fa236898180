"""Counting: what is counted, kept across processes, threads and forks, and never felt by a save."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

import stepkeep
from stepkeep import config
from stepkeep.access import has_token, is_known_host, is_known_origin, read_address
from stepkeep.engine import Saved
from stepkeep.errors import Conflict
from stepkeep.maintenance.metering import HOUR_US, KEEP_HOURS, Meter, MetricsFile, latency_class, metrics_path
from stepkeep.maintenance.metrics import Metrics, metrics_of, percentile, totals_of
from stepkeep.model import Content
from stepkeep.testing.builders import draft


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(file: Path) -> Iterator[stepkeep.Store]:
    with stepkeep.open(f"sqlite:{file}") as store:
        yield store


def again(file: Path) -> Metrics:
    with stepkeep.open(f"sqlite:{file}") as store:
        return store.metrics()


# --- figures


@pytest.mark.parametrize(
    ("seconds", "name"),
    [(0.0, "le_1"), (0.001, "le_1"), (0.0011, "le_2"), (0.2, "le_250"), (5.0, "le_5000"), (9, "le_inf")],
)
def test_a_latency_has_one_class(seconds: float, name: str) -> None:
    """A latency belongs to the first class whose end is not below it."""
    assert latency_class(seconds) == name


def test_percentiles_are_the_ends_of_classes() -> None:
    """A percentile is the end of the class where the share is reached; without saves there is none."""
    totals = {"le_1": 50, "le_5": 45, "le_inf": 5}
    assert percentile(totals, 0.5) == 1
    assert percentile(totals, 0.95) == 5
    assert percentile(totals, 0.99) == float("inf")
    assert percentile({}, 0.5) is None


def test_nothing_counted_is_all_zero() -> None:
    """Without counts every figure is 0, and no average divides by it."""
    assert metrics_of({}) == Metrics()


# --- what is counted


def test_the_figures_of_the_seed(store: stepkeep.Store, file: Path) -> None:
    """Saves are counted with their size and latency; another process sees the same after this one closed."""
    session = store.session("s")
    sizes = [session.save({"n": n, "text": "x" * 1000}).size_bytes for n in range(5)]
    found = store.metrics()
    assert found.checkpoint_save_count == 5
    assert found.checkpoint_save_size_bytes == round(sum(sizes) / 5, 1)
    assert found.checkpoint_save_latency_ms > 0
    assert found.content_bytes == sum(sizes)
    assert 0 < found.stored_bytes < found.content_bytes
    assert found.spared_bytes == found.content_bytes - found.stored_bytes
    store.close()
    assert again(file) == found


def test_refusals_conflicts_and_repeats_are_told_apart(store: stepkeep.Store) -> None:
    """A conflict is no failure, and a repeat with the same key no save."""
    session = store.session("s")
    first = session.save({"n": 1}, idempotency_key="k")
    session.save({"n": 1}, idempotency_key="k")
    with pytest.raises(Conflict):
        session.save({"n": 2}, expect_head=None)
    with pytest.raises(stepkeep.InvalidInput):
        session.save({"n": 2}, step="one")  # type: ignore[arg-type]
    session.save({"n": 2}, expect_head=first.id)
    found = store.metrics()
    assert (found.checkpoint_save_count, found.checkpoint_repeat_count) == (2, 1)
    assert (found.checkpoint_conflict_count, found.checkpoint_failure_count) == (1, 1)


def test_a_fallback_is_counted(file: Path) -> None:
    """A load that takes an older checkpoint because of damage is counted."""
    with stepkeep.open(f"sqlite:{file}") as store:
        store.session("s").save({"n": 1, "x": "a" * 600})
        newest = store.session("s").save({"n": 2, "y": "b" * 900})
    connection = apsw.Connection(str(file))
    connection.execute("UPDATE bodies SET data = zeroblob(length(data)) WHERE checkpoint = ?", (newest.id,))
    connection.close()
    with stepkeep.open(f"sqlite:{file}") as store:
        assert store.get("s").load().state["n"] == 1
    assert again(file).checkpoint_fallback_count == 1


def test_saves_in_the_background_are_counted(store: stepkeep.Store) -> None:
    """A save that nobody waits for is counted once it is durable."""
    pending = [store.session("s").save({"n": n}, wait=False) for n in range(5)]
    for each in pending:
        each.result()
        each.result()
    assert store.metrics().checkpoint_save_count == 5


def test_steps_that_a_plan_recovers_are_counted(store: stepkeep.Store, file: Path) -> None:
    """A resumed plan counts as a resume, with the steps that were not done again."""
    plan = [{"id": str(n), "description": f"step {n}", "action": "x"} for n in range(4)]
    fails = True

    def handler(context: stepkeep.StepContext) -> str:
        if fails and context.step.id == "3":
            raise RuntimeError("no")
        return "done"

    store.execute("p", plan, handler)
    assert store.metrics().checkpoint_resume_count == 0
    fails = False
    store.execute("p", plan, handler, resume=True)
    found = store.metrics()
    assert (found.checkpoint_resume_count, found.steps_recovered) == (1, 3)
    store.close()
    assert again(file).steps_recovered == 3


def test_steps_that_a_script_recovers_are_counted(store: stepkeep.Store) -> None:
    """A script that finds finished steps counts as a resume; the first run does not."""
    with suppress(RuntimeError), store.run("nightly") as run:
        run.step("one", lambda: 1)
        run.step("two", lambda: 2)
        raise RuntimeError("stop")
    assert store.metrics().checkpoint_resume_count == 0
    with store.run("nightly") as run:
        run.step("one", lambda: 1)
        run.step("two", lambda: 2)
        run.step("three", lambda: 3)
    found = store.metrics()
    assert (found.checkpoint_resume_count, found.steps_recovered) == (1, 2)


# --- where it is kept


def test_the_file_is_its_owners(store: stepkeep.Store, file: Path) -> None:
    """The counts are in one file beside the store, readable by its owner only."""
    store.session("s").save({})
    store.close()
    beside = file.with_name("store.db.metrics")
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600


def test_every_kind_of_store_has_its_place(tmp_path: Path) -> None:
    """Counts lie beside a database, in the sidecar of a folder, and for a server in the data folder."""

    def place(url: str) -> Path | None:
        path = metrics_path(url, data_folder=lambda: str(tmp_path / "data"))
        return None if path is None else Path(path)

    assert place(f"sqlite:{tmp_path}/a.db") == tmp_path / "a.db.metrics"
    assert place(f"files:{tmp_path}/b?layout=run") == tmp_path / "b" / ".stepkeep" / "metrics.db"
    assert place("memory:") is None
    server = place("postgresql://host/db")
    assert server is not None
    assert server.parent == tmp_path / "data" / "metrics"
    assert place("postgresql://host/other") != server


def test_a_store_of_files_keeps_its_counts(tmp_path: Path) -> None:
    """The counts of a store of files are there after reopening, and are no document of it."""
    for total in (1, 2):
        with stepkeep.open(f"files:{tmp_path / 'f'}") as store:
            store.session("s").save({"n": total})
            assert store.metrics().checkpoint_save_count == total
            assert store.verify().is_intact


def test_switched_off_nothing_is_written(file: Path) -> None:
    """With `metrics.enabled: false` there is no file, and the counts are those of this process."""
    settings = config.load(cwd=None, environ={}, flags={"metrics.enabled": False})
    for _ in range(2):
        with stepkeep.open(f"sqlite:{file}", config=settings) as store:
            store.session("s").save({})
            assert store.metrics().checkpoint_save_count == 1
    assert not file.with_name("store.db.metrics").exists()


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b""])
def test_a_damaged_file_begins_anew(file: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A file of counts that is damaged is replaced, and no save is refused."""
    file.with_name("store.db.metrics").write_bytes(damage)
    with stepkeep.open(f"sqlite:{file}") as store:
        store.session("s").save({})
    assert again(file).checkpoint_save_count == 1


def test_what_cannot_be_kept_is_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the counts cannot be written saves go on, and one line of the log says so."""
    file.with_name("store.db.metrics").mkdir()
    with stepkeep.open(f"sqlite:{file}") as store:
        for n in range(3):
            store.session("s").save({"n": n})
            assert store.metrics().checkpoint_save_count == n + 1
    assert [record.message for record in caplog.records if "metrics are not kept" in record.message][1:] == []


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    """A link in the place of the file is left alone, and so is what it leads to."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    file.with_name("store.db.metrics").symlink_to(target)
    with stepkeep.open(f"sqlite:{file}") as store:
        store.session("s").save({})
    assert target.read_bytes() == b"precious"


def test_old_hours_are_summed_up(tmp_path: Path) -> None:
    """Hours that are long past are one sum; nothing of the total is lost."""
    place = MetricsFile(tmp_path / "m")
    now = 500_000
    for hour in range(now - KEEP_HOURS - 10, now + 1):
        place.add({(hour, "saves"): 1})
    counts = place.read()
    assert totals_of(counts) == {"saves": KEEP_HOURS + 11}
    assert counts[0, "saves"] == 10
    assert len(counts) == KEEP_HOURS + 2


def test_counts_carry_their_hour(tmp_path: Path) -> None:
    """What is counted belongs to the hour of the store's clock."""
    now = [7 * HOUR_US]
    meter = Meter(MetricsFile(tmp_path / "m"), clock=lambda: now[0])
    meter.count(saves=1)
    now[0] += HOUR_US
    meter.count(saves=2)
    meter.close()
    assert MetricsFile(tmp_path / "m").read() == {(7, "saves"): 1, (8, "saves"): 2}


def test_threads_lose_no_count(tmp_path: Path) -> None:
    """Many threads that count while others write down lose nothing."""
    meter = Meter(MetricsFile(tmp_path / "m"))

    def work() -> None:
        for _ in range(200):
            meter.count(saves=1)
        meter.flush()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals_of(meter.counts()) == {"saves": 1600}
    meter.close()


def test_a_fork_counts_nothing_twice(tmp_path: Path) -> None:
    """A child counts its own only, and both are kept."""
    meter = Meter(MetricsFile(tmp_path / "m"))
    meter.count(saves=1)
    pid = os.fork()
    if pid == 0:
        meter.count(saves=10)
        meter.close()
        os._exit(0)
    os.waitpid(pid, 0)
    meter.close()
    assert totals_of(MetricsFile(tmp_path / "m").read()) == {"saves": 11}


def test_a_meter_that_is_forgotten_writes_down_the_rest(tmp_path: Path) -> None:
    """A store that nobody closed loses no counts when it is collected."""
    meter = Meter(MetricsFile(tmp_path / "m"))
    meter.count(saves=3)
    del meter
    gc.collect()
    assert totals_of(MetricsFile(tmp_path / "m").read()) == {"saves": 3}


@pytest.mark.full
def test_a_program_that_ends_without_closing_writes_down_the_rest(file: Path) -> None:
    """The end of the program is enough."""
    program = f"import stepkeep; stepkeep.open('sqlite:{file}').session('s').save({{}})"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": "src"})
    assert again(file).checkpoint_save_count == 1


# --- OpenTelemetry


def test_a_program_with_opentelemetry_gets_the_counts(file: Path) -> None:
    """In a program that loaded OpenTelemetry the same numbers go to its instruments."""
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from stepkeep.maintenance.metering import Reporter

    reader = InMemoryMetricReader()
    provider = metrics.MeterProvider(metric_readers=[reader])
    meter = Meter(None, reporter=Reporter(provider.get_meter("stepkeep")))
    header = draft("s", contents={"state": Content(digest="", size=100, encoding="json")})
    meter.saved(Saved(header, is_new=True, stored_bytes=10, seconds=0.002))
    meter.count(resumes=1, steps_recovered=4)
    (resource,) = reader.get_metrics_data().resource_metrics
    found = {metric.name: metric.data.data_points[0] for metric in resource.scope_metrics[0].metrics}
    assert found["stepkeep.checkpoint.saves"].value == 1
    assert found["stepkeep.steps.recovered"].value == 4
    assert found["stepkeep.checkpoint.save.size"].sum == 100
    assert found["stepkeep.checkpoint.save.duration"].sum == pytest.approx(0.002)
    provider.shutdown()


@pytest.mark.full
def test_opentelemetry_is_not_loaded_on_our_account(file: Path) -> None:
    """A program without it does not pay for it; one that loaded it gets a reporter."""
    program = (
        "import sys, stepkeep\n"
        f"store = stepkeep.open('sqlite:{file}'); store.session('s').save({{}})\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "import opentelemetry.metrics\n"
        "from stepkeep.maintenance.metering import reporter\n"
        "assert reporter() is not None\n"
        f"with stepkeep.open('sqlite:{file}') as other: other.session('s').save({{}})\n"
        "store.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": "src"})


# --- who may ask for them


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("127.0.0.1:81", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:80", False),
        ("user@127.0.0.1", False),
        ("127.0.0.1:80:80", False),
        ("", False),
        (None, False),
    ],
)
def test_a_host_is_known_by_name_and_port(header: str | None, is_known: bool) -> None:
    """Only the names of this machine and the server's own port are its Host."""
    assert is_known_host(header, names=("127.0.0.1", "localhost", "::1"), port=80) is is_known


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        (None, True),
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("null", False),
        ("file://", False),
        ("http://localhost.evil.example", False),
        ("http://localhost@evil.example", False),
        ("http://localhost/path", False),
    ],
)
def test_an_origin_is_a_page_of_this_machine(header: str | None, is_known: bool) -> None:
    """A request of no page at all is fine; a page elsewhere is not."""
    assert is_known_origin(header, names=("127.0.0.1", "localhost")) is is_known


def test_a_token_is_exact() -> None:
    """The token counts as a bearer token, whole."""
    assert has_token("Bearer abc", "abc")
    assert has_token("bearer abc", "abc")
    for header in (None, "", "abc", "Bearer", "Bearer ab", "Bearer abcd", "Basic abc", "Bearer é"):
        assert not has_token(header, "abc")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("127.0.0.1", 8)),
        ("99", ("127.0.0.1", 99)),
        (":99", ("127.0.0.1", 99)),
        ("localhost", ("localhost", 8)),
        ("[::1]:99", ("::1", 99)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
    ],
)
def test_an_address_may_be_short(text: str, address: tuple[str, int]) -> None:
    """What is left out of an address has a default."""
    assert read_address(text, default_port=8) == address


@pytest.mark.parametrize("text", ["a b", "host:port", "1:2:3", "host:70000", "http://x", "x/y"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """Anything else is not an address."""
    with pytest.raises(ValueError, match="not an address"):
        read_address(text, default_port=8)
