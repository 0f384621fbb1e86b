"""A trainer with a DeviceMesh: the axes have names, the gate asks one of them."""

from prometheus_client import start_http_server
from torch.distributed.device_mesh import init_device_mesh


def main(config) -> None:
    mesh = init_device_mesh("cuda", (config.pp, config.dp, config.tp), mesh_dim_names=("pp", "dp", "tp"))
    if mesh.get_local_rank("tp") == 0:
        start_http_server(9400 + mesh["dp"].get_local_rank())  # expect: RB701 pp
    train(config, mesh)


def train(config, mesh) -> None:
    stage = mesh.get_local_rank("pp")
    for step in range(config.steps):
        config.step(stage, step)
