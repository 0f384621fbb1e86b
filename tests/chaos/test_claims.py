"""Claims of one host under fire: 32 processes and 1,000 kills, with pauses, forks, a bad disk and spoiled records.

At no instant two owners; after every death of an owner exactly one new one; tokens that rise; nothing left. The judge
is `history.check` over what every process wrote, and a witness in shared memory beside it. Four wrong designs go
through the same harness, to show that it would have seen.

RANKBIND_CHAOS=n makes the runs n times as long (1); RANKBIND_CHAOS_SEED repeats what is drawn, though not what the
kernel schedules. `pytest -s` prints the figures.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from .claimant import PLACES, Habits
from .harness import SPOILS, Plan, Report, namespace, rehearse, spoil

FACTOR = float(os.environ.get("RANKBIND_CHAOS", "1"))
SEED = int(os.environ.get("RANKBIND_CHAOS_SEED") or random.SystemRandom().randrange(10**9))
WITHIN = 10.0
"""Seconds after which a resource without an owner is lost, not late: the machine may be busy with other tests."""
PROMISE = 1.0
"""Seconds in which a stand-by is told to take over."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600 * max(1.0, FACTOR))]


def run(tmp_path: Path, **plan: object) -> Report:
    given = {"seed": SEED, "seconds": 240 * max(1.0, FACTOR)} | plan
    report = rehearse(Plan(**given), tmp_path)  # type: ignore[arg-type]
    print(f"\n{report.summary()}")
    return report


def assert_right(report: Report) -> None:
    assert report.faults(WITHIN) == []
    assert report.outcome.ends.keys() <= {"0"}
    assert report.outcome.done["kills"] == report.plan.kills, "the machine is too slow, or nobody could be killed"
    assert report.torn <= report.plan.kills


def assert_nothing_left(report: Report) -> None:
    """But the locks, and the records of claims: those of addresses go with their owners."""
    assert report.outcome.left == 0
    left = [path for path in report.runtime.rglob("*") if not path.is_dir()]
    odd = [path for path in left if path.suffix != ".lock" and path.name != "mutex" and path.parent.name != "claims"]
    assert odd == []
    assert {path.suffix for path in left if path.parent.name == "claims"} == {".lock", ".json"}
    assert {path.name for path in report.folder.iterdir()} <= {
        "log",
        "faults",
        "answer",
        "mount",
        "read-only",
        "runtime",
    }
    assert str(report.folder) not in Path("/proc/net/unix").read_text()


def test_exactly_one_owner_whoever_is_killed_stopped_or_forked(tmp_path: Path) -> None:
    report = run(tmp_path, kills=round(1000 * FACTOR), kill_every=0.03, fates=0.8)
    assert_right(report)
    assert_nothing_left(report)
    done = report.outcome.done
    missed = [place for places in PLACES.values() for place in places if not done.get(f"killed {place}")]
    assert missed == [] or FACTOR < 0.5
    for places in PLACES.values():
        assert any(done.get(f"killed {place}") for place in places)
    for what in ("killed anywhere", "killed while paused", "paused as owner", "outlived its parent"):
        assert done.get(what)
    times = sorted(each.after for each in report.takeovers() if each.after is not None)
    assert times[len(times) // 2] < PROMISE * 1e9


@pytest.mark.skipif(not namespace(), reason="this user may not make a mount namespace (unshare -m, or -rm)")
def test_exactly_one_owner_on_a_disk_that_is_full_or_read_only(tmp_path: Path) -> None:
    report = run(tmp_path, kills=round(200 * FACTOR), kill_every=0.05, disk=True, disk_every=0.4)
    assert_right(report)
    assert_nothing_left(report)
    for what in ("full disk", "read-only directory"):
        assert report.outcome.done.get(what)


def test_a_standby_takes_over_within_a_second(tmp_path: Path) -> None:
    """Nobody tries again and again, so the kernel alone wakes them; and nothing holds a successor up."""
    report = run(
        tmp_path,
        claimants=12,
        kills=round(60 * FACTOR),
        kill_every=0.1,
        pause_every=0.0,
        spoil_every=0.0,
        fates=0.0,
        resources=("plain", "of a group"),
        habits=Habits(standby=1.0, dwell=0.2, exits=0.0),
    )
    assert_right(report)
    times = sorted(each.after for each in report.takeovers() if each.after is not None)
    assert times[len(times) // 2] < PROMISE * 1e9


# The harness itself


@pytest.mark.parametrize("before", SPOILS)
@pytest.mark.parametrize("after", SPOILS)
def test_what_is_spoiled_is_never_written_through_a_link(tmp_path: Path, before: str, after: str) -> None:
    """It once overwrote /etc/passwd, through a link that it had made itself."""
    outside, path = tmp_path / "outside", tmp_path / "records" / "x.json"
    outside.write_text("untouched")
    path.parent.mkdir()
    for each in (path, path.with_name("decoy")):
        each.symlink_to(outside)
    for what in (before, after, before):
        with contextlib.suppress(OSError):
            spoil(path, what, random.Random(SEED))
    assert outside.read_text() == "untouched"


# Right and wrong designs


def control(tmp_path: Path, design: str, **plan: object) -> Report:
    given = {"claimants": 8, "resources": ("plain",), "kills": 10**6, "seconds": 4.0, "spoil_every": 0.0} | plan
    return run(tmp_path, design=design, **given)


def is_caught(tmp_path: Path, design: str, *shown: Callable[[Report], Iterable[str]], **plan: object) -> bool:
    """Whether a wrong design is seen to be one. What a short run meets is chance: it may have to be more than one."""
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        report = control(folder, design, seed=SEED + attempt, **plan)
        if all(any(faults(report)) for faults in shown):
            return True
    return False


def told(what: str, within: float = WITHIN) -> Callable[[Report], Iterable[str]]:
    """What the judge says of a run."""
    return lambda report: [fault for fault in report.faults(within) if what in fault]


def witnessed(what: str) -> Callable[[Report], Iterable[str]]:
    """What was seen from within it."""
    return lambda report: [fault for fault in report.outcome.faults if what in fault]


def test_plain_flock_passes(tmp_path: Path) -> None:
    report = control(tmp_path, "flock", claimants=16, resources=("plain", "of a group", "file"))
    assert report.faults(WITHIN) == []
    assert report.outcome.left == 0


def test_a_lock_file_that_is_unlinked_at_release_is_caught(tmp_path: Path) -> None:
    assert is_caught(tmp_path, "unlinked", told("both owned"), witnessed("was inside"), kill_every=0.2)


def test_a_lease_without_a_token_is_caught(tmp_path: Path) -> None:
    assert is_caught(tmp_path, "lease", told("both owned"), witnessed("was inside"), kill_every=0.0, pause_every=0.1)


def test_a_lock_that_a_child_keeps_is_caught(tmp_path: Path) -> None:
    shown = told("nobody took over", PROMISE), witnessed("forked child")
    assert is_caught(tmp_path, "inherited", *shown, kill_every=0.2, habits=Habits(forks=0.3))


def test_a_token_that_is_lost_with_its_record_is_caught(tmp_path: Path) -> None:
    assert is_caught(tmp_path, "forgetful", told("is not above"), spoil_every=0.1, spoils=("missing",))
