"""A whole SGLang server on the CPU, with a tiny model of random weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .sglang import free_ports, python_of

READY_WITHIN = 240
"""Seconds. Alone on two cores a server takes 25 to 50."""

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

PAGE = 4


class Server:
    """A launch of SGLang; as a context manager it is over, with all its processes, at the end of the block.

    Args:
        release: of SGLang.
        launch: further flags.
        events: for ``--kv-events-config``.
        plugins: the entry points that SGLang may load; no other is imported.
        path: the folder that has them.
        folder: an empty one, for the model, the log, and what the engine leaves in its temporary folder.
        claims: rankbind's runtime directory; left out, one that no other server has.
        environment: further variables.
    """

    def __init__(
        self,
        release: str,
        launch: Sequence[str],
        events: dict[str, Any],
        plugins: Sequence[str],
        path: Path,
        folder: Path,
        claims: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_ports()
        self.folder = folder
        self._log = folder / "log"
        (folder / "config.json").write_text(json.dumps(MODEL))
        (folder / "tmp").mkdir()
        variables = {
            **os.environ,
            **(environment or {}),
            "SGLANG_PLUGINS": ",".join(plugins),
            "PYTHONPATH": str(path),
            "RANKBIND_E2E": str(folder),
            "RANKBIND_DIR": str(claims or folder / "claims"),
            "TMPDIR": str(folder / "tmp"),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "CUDA_VISIBLE_DEVICES": "",
        }
        variables.pop("SGLANG_CPU_OMP_THREADS_BIND", None)
        if release == "0.5.23" and launch:  # cannot start two stages without it; 0.5.14 cannot with it
            variables["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"
        command = (
            *(python_of(release), "-W", "ignore", "-m", "sglang.launch_server", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--model-path", str(folder), "--load-format", "dummy", "--device", "cpu"),
            *("--skip-tokenizer-init", "--skip-server-warmup", "--page-size", str(PAGE)),
            *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
            *("--disable-overlap-schedule", "--disable-cuda-graph", "--mem-fraction-static", "0.5"),
            *("--max-total-tokens", "2048", "--max-running-requests", "4", "--context-length", "1024"),
            *("--kv-events-config", json.dumps(events), *launch),
        )
        self._shared_before = _shared_memory()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                cwd=folder,  # not this repository, where Python would find rankbind before the one that is installed
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._kill()

    @property
    def log(self) -> str:
        """All that its processes have said."""
        return self._log.read_text()

    def ready(self) -> None:
        """Wait until it serves.

        Raises:
            AssertionError: it died, or did not come up in `READY_WITHIN` seconds.
        """
        end = time.monotonic() + READY_WITHIN
        while time.monotonic() < end:
            assert self._process.poll() is None, f"the server died:\n{self.log[-4_000:]}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=30) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.5)
        raise AssertionError(f"the server is not ready after {READY_WITHIN} s:\n{self.log[-4_000:]}")

    def dies(self) -> int:
        """Wait until it has died by itself, and give its exit status."""
        return self._process.wait(READY_WITHIN)

    def dies_alone(self) -> int:
        """As `dies`, and it must not have started a process of multiprocessing's, as schedulers are.

        Raises:
            AssertionError: it has.
        """
        end = time.monotonic() + READY_WITHIN
        while (status := self._process.poll()) is None:
            for child in _children(self._process.pid):
                assert "multiprocessing" not in child, f"it has started {child}:\n{self.log[-4_000:]}"
            assert time.monotonic() < end, f"it goes on:\n{self.log[-4_000:]}"
            time.sleep(0.02)
        return status

    def generate(self, tokens: Sequence[int]) -> list[int]:
        """Continue the tokens by four."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps(
                {"input_ids": list(tokens), "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
            ).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            ids: list[int] = json.load(answer)["output_ids"]
        return ids

    def flush(self) -> None:
        """Throw away all that is cached. It must have nothing to do."""
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self.port}/flush_cache", method="POST"), timeout=60
        ) as answer:
            assert answer.status == 200

    def kept(self, stage: int) -> int:
        """The events that the cache of a stage has recorded and nobody took, as the observer counts them."""
        return int((self.folder / str(stage)).read_text())

    def keeps(self, more_than: int, stage: int) -> bool:
        """Whether these events come to be more than so many, within seconds."""
        end = time.monotonic() + 10
        while self.kept(stage) <= more_than and time.monotonic() < end:
            time.sleep(0.1)
        return self.kept(stage) > more_than

    def hurt(self, how: str) -> float:
        """Let something happen to the publisher (see rankbind_inside.py): when, on the monotonic clock."""
        return float(self._order({"do": "hurt", "how": how}))

    def cached(self) -> set[int]:
        """The hashes of the blocks that the publishing scheduler's cache holds."""
        return set(self._order({"do": "cached"}))

    def happened(self, what: str) -> float | None:
        """When something happened in a scheduler, the last one to tell, on the monotonic clock; None if it has not.

        Args:
            what: ``started``, ``loading`` (its model), ``failed`` (to start).
        """
        file = self.folder / what
        return float(file.read_text()) if file.exists() else None

    def _order(self, order: dict[str, Any]) -> Any:
        answer, whole = self.folder / "answer", self.folder / "order.part"
        answer.unlink(missing_ok=True)
        whole.write_text(json.dumps(order))
        whole.replace(self.folder / "order")
        end = time.monotonic() + 30
        while not answer.exists():
            assert time.monotonic() < end, f"no answer to {order}"
            time.sleep(0.005)
        return json.loads(answer.read_text())

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        end = time.monotonic() + 30
        while _lives(self._process.pid):
            assert time.monotonic() < end, "processes of the server outlive it"
            time.sleep(0.05)
        for file in _shared_memory() - self._shared_before:
            if not _is_mapped(file):
                file.unlink(missing_ok=True)


def _children(pid: int) -> list[str]:
    """The commands of its children."""
    found = []
    with suppress(OSError):
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in tasks.read_text().split():
                with suppress(OSError):
                    found.append(Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "))
    return found


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _shared_memory() -> set[Path]:
    """Where schedulers say how busy they are; a server that is killed leaves it behind."""
    return set(Path("/dev/shm").glob("sglang_loads_*"))


def _is_mapped(file: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if str(file) in maps.read_text():
                return True
    return False
