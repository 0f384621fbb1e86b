"""Builds the environments that hold real SGLang and vLLM, one for each release tested, in the repository.

    python tests/e2e/environments.py          # with the python of .venv, whose torch they share

Running it again costs nothing; a build that was interrupted, or whose requirements changed, is made anew. A folder is
complete when its last file, `.complete`, says what it was made from.

    .venv-sglang/common          packages that all releases take, pinned
    .venv-sglang/packages-X      those that differ, for release X (0.5.15 takes those of 0.5.14)
    .venv-sglang/X/bin/python    SGLang X, on a torch without triton and without a GPU (see standins/)

    .venv-sglang/sources/X       the Python of SGLang X, only to be read: releases that tests/audit is about

    .venv-vllm/common            what vLLM takes besides
    .venv-vllm/X/bin/python      the Python of vLLM X, without its kernels, on the packages above

Everything is installed without its dependencies: the engines' own lists ask for another torch and gigabytes of CUDA.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".venv-sglang"
VLLM_HOME = HERE.parents[1] / ".venv-vllm"

RELEASES = {"0.5.14": "0.5.14", "0.5.15": "0.5.14", "0.5.23": "0.5.23"}
"""Each release tested, and the release whose packages it takes."""

KERNELS = frozenset({"0.5.23"})
"""Releases that cannot be imported without sgl_kernel."""

SOURCES = ("0.5.9", "0.5.10", "0.5.12", "0.5.13", "0.5.17", "0.5.20")
"""Releases that are read and never run: each has a bug, or is the first without it. `RELEASES` are read too."""

SOURCES_NEED = (".py", "METADATA")
"""How the files end that are taken out of their wheels."""

VLLM_RELEASES = {"0.11.0": "0.5.14", "0.33.0": "0.5.23"}
"""Each release of vLLM tested, and the release of SGLang whose packages it takes."""

VLLM_NEEDS = (".py", ".json", ".txt", "METADATA")
"""How the files end that are taken out of a wheel of 400 MB: the rest are kernels, and what they are made from."""


def main() -> None:
    """Build what is missing; one process at a time."""
    started = time.monotonic()
    HOME.mkdir(exist_ok=True)
    VLLM_HOME.mkdir(exist_ok=True)
    with FileLock(HOME / ".lock"), ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [
            pool.submit(_packages, "common"),
            *(pool.submit(_packages, f"packages-{packages}") for packages in sorted(set(RELEASES.values()))),
            *(pool.submit(_release, release, packages) for release, packages in RELEASES.items()),
            pool.submit(_packages, "vllm", VLLM_HOME / "common"),
            *(pool.submit(_vllm_release, release, packages) for release, packages in VLLM_RELEASES.items()),
            *(pool.submit(_sources, release) for release in SOURCES),
        ]
        built = sum(job.result() for job in jobs)
    print(
        f"SGLang {', '.join(RELEASES)} under {HOME.name}/, vLLM {', '.join(VLLM_RELEASES)} under {VLLM_HOME.name}/, "
        f"the sources of SGLang {', '.join(SOURCES)}: {built} built, {time.monotonic() - started:.0f} s"
    )


def _packages(name: str, folder: Path | None = None) -> bool:
    requirements = HERE / f"requirements-{name}.txt"
    folder = folder or HOME / name
    if _is_complete(folder, requirements.read_text()):
        return False
    _pip(folder, "--requirement", str(requirements))
    _complete(folder, requirements.read_text())
    return True


def _release(release: str, packages: str) -> bool:
    standins = [HERE / "standins" / "cpu", *([HERE / "standins" / "kernels"] if release in KERNELS else [])]
    path = [HOME / f"packages-{packages}", HOME / "common", *standins]
    return _environment(
        HOME / release,
        f"sglang {release}",
        path,
        start="import sglang_on_cpu\n",
        fill=lambda site: _pip(site, f"sglang=={release}"),
    )


def _vllm_release(release: str, packages: str) -> bool:
    path = [HOME / f"packages-{packages}", HOME / "common", VLLM_HOME / "common", HERE / "standins" / "vllm"]
    what = f"vllm {release}\n{VLLM_NEEDS}"
    return _environment(VLLM_HOME / release, what, path, start="", fill=lambda site: _vllm(site, release))


def _sources(release: str) -> bool:
    folder = HOME / "sources" / release
    made_from = f"sglang {release}\n{SOURCES_NEED}"
    if _is_complete(folder, made_from):
        return False
    _unpack(f"sglang=={release}", SOURCES_NEED, folder)
    _complete(folder, made_from)
    return True


def _vllm(site: Path, release: str) -> None:
    """Put the Python of vLLM there, and the plugin that has it start without a GPU."""
    _unpack(f"vllm=={release}", VLLM_NEEDS, site)
    metadata = site / "vllm_on_cpu-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-on-cpu\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[vllm.platform_plugins]\ncpu = vllm_on_cpu:platform\n")


def _environment(folder: Path, what: str, path: list[Path], *, start: str, fill: Callable[[Path], None]) -> bool:
    """A python that has `what` of its own, the torch of this one, and the packages of `path`."""
    torch = importlib.metadata.distribution("torch")
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    lines = "".join(f"{entry}\n" for entry in path)
    made_from = f"{what}\ntorch {torch.version} {torch.locate_file('')}\npython {sys.version}\n{lines}"
    if _is_complete(folder, made_from):
        return False
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    fill(site)
    for entry in {Path(str(file)).parts[0] for file in torch.files or ()} - {"..", "__pycache__"}:
        (site / entry).symlink_to(Path(str(torch.locate_file(entry))))
    (site / "environment.pth").write_text(f"{lines}{start}")
    _complete(folder, made_from)
    return True


def _pip(target: Path, *what: str) -> None:
    # Not compiled: Python compiles the small part that is imported, when it is.
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary", ":all:", "--no-compile", "--upgrade", "--target", str(target), *what),
        ],
        check=True,
    )


def _unpack(wheel: str, needs: tuple[str, ...], target: Path) -> None:
    """Put there the files of a wheel whose names end in one of `needs`."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
                *("--only-binary", ":all:", "--dest", folder, wheel),
            ],
            check=True,
        )
        (file,) = Path(folder).iterdir()
        with zipfile.ZipFile(file) as archive:
            archive.extractall(target, [name for name in archive.namelist() if name.endswith(needs)])


def _is_complete(folder: Path, made_from: str) -> bool:
    marker = folder / ".complete"
    if marker.is_file() and marker.read_text() == _digest(made_from):
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def _complete(folder: Path, made_from: str) -> None:
    (folder / ".complete").write_text(_digest(made_from))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    main()
