"""The package without torch and with any supported Python: `make test-bare`.

Needs an environment without torch, so `make test` leaves this folder out.
"""

import importlib.util
import os

import pytest
from jupyter_client.manager import KernelManager

from npu_notebook import Cluster, LaunchError


def test_this_environment_has_no_torch():
    assert importlib.util.find_spec("torch") is None


def test_ranks_without_a_device_run_cells_and_hold_variables():
    with Cluster.start(num_ranks=2, device="none") as cluster:
        cluster.run("import asyncio\nx = rank + 10\nawait asyncio.sleep(0)")
        cluster["words"] = {"a": [1, 2]}
        cluster.run("words['a'].append(x)")
        assert cluster.pull("words") == [{"a": [1, 2, 10]}, {"a": [1, 2, 11]}]


def test_a_device_that_needs_torch_says_that_it_is_missing():
    with pytest.raises(LaunchError, match=r"npu-notebook\[torch\].*--device none"):
        Cluster.start(num_ranks=2, device="cpu")


def test_the_kernel_runs_cells_on_all_ranks():
    kernels = KernelManager(kernel_name="npu_notebook")
    kernels.start_kernel(env=os.environ.copy())
    client = kernels.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=30)
        start = run(client, "%npu_cluster start --device none -n 2")
        assert "2 ranks" in start
        assert "[0-1] 42" in run(client, "%%spmd\n6 * 7")
        run(client, "%npu_cluster stop")
    finally:
        client.stop_channels()
        kernels.shutdown_kernel()
        kernels.cleanup_resources()
        client.context.term()


def run(client, code: str) -> str:
    """Run one cell in the kernel and return its text; fail if it raises."""
    texts = []

    def take(message) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            texts.append(content["text"])
        elif "data" in content:
            texts.append(content["data"]["text/plain"])

    reply = client.execute_interactive(code, output_hook=take, timeout=40)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(texts)
