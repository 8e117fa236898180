"""A save beside the least a durable save can cost: one bare insert of the very patch that was stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.peers import BareInsert, Stepkeep
from benchmarks.timing import percentile, say, seconds_of
from benchmarks.workloads import near


@dataclass
class Floor:
    """Seconds of saves of states near one size, and of the bare inserts between them."""

    size_bytes: int
    samples: int
    save_p50: float
    save_p95: float
    bare_p50: float
    bare_p95: float
    patch_bytes: int

    @property
    def ratio(self) -> float:
        return self.save_p50 / self.bare_p50


def run(size_bytes: int, directory: Path, *, samples: int) -> Floor:
    """Time saves of workload W at a size, a bare insert after each."""
    say(f"floor, {size_bytes // 1000} KB")
    directory.mkdir(parents=True, exist_ok=True)
    ours = Stepkeep(directory)
    bare = BareInsert(directory, ours)
    saves, inserts, patches = [], [], []
    for scene in near(size_bytes, samples):
        if scene.is_first:
            ours.use_session(f"floor-{scene.conversation}")
            ours.saver(scene.step, scene.state)()
            continue
        saves.append(seconds_of(ours.saver(scene.step, scene.state)))
        patches.append(len(ours.last_stored()))
        inserts.append(seconds_of(bare.saver(scene.step, scene.state)))
    ours.close()
    bare.close()
    return Floor(
        size_bytes=size_bytes,
        samples=len(saves),
        save_p50=median(saves),
        save_p95=percentile(saves, 95),
        bare_p50=median(inserts),
        bare_p95=percentile(inserts, 95),
        patch_bytes=round(median(patches)),
    )
