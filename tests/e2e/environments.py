"""Builds the environments that hold real SGLang, one for each release tested, under .venv-sglang/ of the repository.

    python tests/e2e/environments.py          # with the python of .venv, whose torch they share

Running it again costs nothing; a build that was interrupted, or whose requirements changed, is made anew. A folder is
complete when its last file, `.complete`, says what it was made from.

    .venv-sglang/common          packages that all releases take, pinned
    .venv-sglang/packages-X      those that differ, for release X (0.5.15 takes those of 0.5.14)
    .venv-sglang/X/bin/python    SGLang X, on a torch without triton and without a GPU (see standins/)

Everything is installed without its dependencies: SGLang's own list asks for another torch and for gigabytes of CUDA.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".venv-sglang"

RELEASES = {"0.5.14": "0.5.14", "0.5.15": "0.5.14", "0.5.23": "0.5.23"}
"""Each release tested, and the release whose packages it takes."""

KERNELS = frozenset({"0.5.23"})
"""Releases that cannot be imported without sgl_kernel."""


def main() -> None:
    """Build what is missing; one process at a time."""
    started = time.monotonic()
    HOME.mkdir(exist_ok=True)
    with FileLock(HOME / ".lock"), ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [
            pool.submit(_packages, "common"),
            *(pool.submit(_packages, f"packages-{packages}") for packages in sorted(set(RELEASES.values()))),
            *(pool.submit(_release, release, packages) for release, packages in RELEASES.items()),
        ]
        built = sum(job.result() for job in jobs)
    print(f"SGLang {', '.join(RELEASES)} under {HOME.name}/: {built} built, {time.monotonic() - started:.0f} s")


def _packages(name: str) -> bool:
    requirements = HERE / f"requirements-{name}.txt"
    folder = HOME / name
    if _is_complete(folder, requirements.read_text()):
        return False
    _pip(folder, "--requirement", str(requirements))
    _complete(folder, requirements.read_text())
    return True


def _release(release: str, packages: str) -> bool:
    folder = HOME / release
    torch = importlib.metadata.distribution("torch")
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    standins = [HERE / "standins" / "cpu", *([HERE / "standins" / "kernels"] if release in KERNELS else [])]
    path = "".join(f"{entry}\n" for entry in (HOME / f"packages-{packages}", HOME / "common", *standins))
    made_from = f"sglang {release}\ntorch {torch.version} {torch.locate_file('')}\npython {sys.version}\n{path}"
    if _is_complete(folder, made_from):
        return False
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    _pip(site, f"sglang=={release}")
    for entry in {Path(str(file)).parts[0] for file in torch.files or ()} - {"..", "__pycache__"}:
        (site / entry).symlink_to(Path(str(torch.locate_file(entry))))
    (site / "environment.pth").write_text(f"{path}import sglang_on_cpu\n")
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
