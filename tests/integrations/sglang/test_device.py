from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...support.sglang import ROOT, free_ports

ON_A_GPU = """
import pytest, torch
import torch.distributed as dist
from tests.support.fake_sglang import FakeSGLang, ranks
import rankbind_sglang

dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
free, allocated = torch.cuda.mem_get_info()[0], torch.cuda.memory_stats()["allocation.all.allocated"]
torch.cuda.set_sync_debug_mode("error")
with pytest.MonkeyPatch.context() as monkeypatch:
    engine = FakeSGLang(monkeypatch)
    from sglang.srt.plugins.hook_registry import HookRegistry
    rankbind_sglang.install()
    HookRegistry.apply_hooks()
    stage = ranks(pp_size=2, pp_rank=1)
    assert len(engine.hooks) == 5
    assert (engine.counts(True, stage), engine.records(True, stage)) == (False, False)
    assert engine.publisher('{"publisher": "zmq"}', stage) is None
torch.cuda.set_sync_debug_mode("default")
assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
assert torch.cuda.mem_get_info()[0] == free
dist.destroy_process_group()
"""


@pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="there is no GPU here")
def test_it_takes_no_device_memory_and_never_synchronises() -> None:
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports()), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", ON_A_GPU], check=True, env=environment)
