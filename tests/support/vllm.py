"""Real vLLM for the tests: its environments, and a lab of its engine cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .sglang import ROOT, TOPIC

PLUGIN = "cpu,rankbind"
PLAIN = "cpu"
"""Values of vLLM's own VLLM_PLUGINS."""


def python_of(release: str) -> Path:
    """The python that has this release of vLLM.

    Raises:
        AssertionError: it was not built.
    """
    home = ROOT / ".venv-vllm" / release
    assert (home / ".complete").is_file(), (
        f"vLLM {release} is not installed under .venv-vllm/: run `make environments`, or set "
        "RANKBIND_TESTS_WITHOUT_VLLM=1 to do without the tests that need it"
    )
    return home / "bin" / "python"


def kv_events(endpoint: str, replay: str | None = None, **more: Any) -> dict[str, Any]:
    """The value of ``--kv-events-config``."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "topic": TOPIC,
        "endpoint": endpoint,
        "replay_endpoint": replay,
        **more,
    }


class Lab:
    """Engine cores of one release, in processes: see tests/integrations/vllm/lab.py.

    Args:
        installed: a folder with the metadata of rankbind-vllm, by which vLLM finds the plugin.
        directory: where its processes make their claims.
    """

    def __init__(self, release: str, installed: Path, directory: Path) -> None:
        path = (installed, ROOT, ROOT / "integrations" / "vllm")
        self._process = subprocess.Popen(
            [python_of(release), "-W", "ignore", ROOT / "tests" / "integrations" / "vllm" / "lab.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, path)),
                "CUDA_VISIBLE_DEVICES": "",
                "RANKBIND_DIR": str(directory),
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_HOST_IP": "127.0.0.1",
                "HF_HUB_OFFLINE": "1",
            },
            start_new_session=True,
        )
        assert self._answer() == {"release": release}

    @contextmanager
    def engine(
        self,
        events: dict[str, Any] | None,
        *,
        plugins: str = PLUGIN,
        replica: int | None = None,
        environment: Mapping[str, str] | None = None,
        **launch: Any,
    ) -> Iterator[list[dict[str, Any]]]:
        """Start the engine cores of a launch, give their reports, and end them.

        Args:
            plugins: those that vLLM may load.
            replica: of data parallelism, if only one is to be started.
            environment: more variables.
            launch: more of vLLM's arguments.
        """
        reports = self._ask(
            {
                "do": "start",
                "launch": launch,
                "events": events,
                "plugins": plugins,
                "replica": replica,
                "environment": dict(environment or {}),
            }
        )
        self._stopped = False
        try:
            yield reports
        finally:
            self.shut_down()
            self._ask({"do": "end"})

    def generate(self, tokens: Sequence[int]) -> list[int | None]:
        """Have every engine core answer a prompt: with how many tokens; None from one that did not start."""
        answer: list[int | None] = self._ask({"do": "generate", "tokens": list(tokens)})
        return answer

    def shut_down(self) -> None:
        """Shut the engines down, in processes that live on."""
        if not self._stopped:
            self._stopped = True
            self._ask({"do": "stop"})

    def close(self) -> None:
        """Kill whatever is left of the lab."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the lab died; run its file by hand to see why"
        return json.loads(line)
