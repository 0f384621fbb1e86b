"""Lets a vLLM that was built for GPUs start without one: the plugin that says which platform this is."""


def platform() -> str:
    """VLLM's own platform for CPUs, which a wheel for GPUs has and does not choose by itself."""
    return "vllm.platforms.cpu.CpuPlatform"
