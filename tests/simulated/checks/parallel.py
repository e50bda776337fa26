"""DDP, FSDP, DTensor, tensor and pipeline parallelism train as one process does."""

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    fp16_compress_hook,
)
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    rand,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.simulated.parts import (
    Feedforward,
    assert_same_parameters,
    mlp,
    on_npu,
    train,
)
from tests.simulated.rank_process import Rank


def _ddp_equals_one_process(rank: Rank, **options: bool) -> None:
    torch.manual_seed(7)
    batch = torch.randn(8 * rank.world_size, 16)
    mine = batch[8 * rank.rank : 8 * (rank.rank + 1)]
    reference = mlp()
    module = DistributedDataParallel(mlp().npu(), device_ids=[rank.rank], **options)
    train(reference, torch.optim.SGD(reference.parameters(), 0.1), batch)
    train(module, torch.optim.SGD(module.parameters(), 0.1), mine.npu())
    assert_same_parameters(reference, module)
    assert all(p.grad.device == rank.device for p in module.parameters())
    with module.no_sync():
        module(mine.npu()).sum().backward()
    # The input is still on the CPU: DDP moves it to its device.
    module(mine).sum().backward()


def ddp(rank: Rank) -> None:
    _ddp_equals_one_process(rank)


def ddp_with_gradients_as_bucket_views(rank: Rank) -> None:
    _ddp_equals_one_process(rank, gradient_as_bucket_view=True)


def ddp_with_a_static_graph(rank: Rank) -> None:
    _ddp_equals_one_process(rank, static_graph=True)


def ddp_that_finds_unused_parameters(rank: Rank) -> None:
    _ddp_equals_one_process(rank, find_unused_parameters=True)


def ddp_with_autocast_buffers_and_a_compressing_hook(rank: Rank) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).npu()
    module = DistributedDataParallel(net, device_ids=[rank.rank])
    module.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(module.parameters())
    scaler = torch.npu.amp.GradScaler()
    for _ in range(2):
        with torch.npu.amp.autocast():
            loss = module(torch.randn(4, 16).npu()).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    weight = net[0].weight.detach().clone()
    dist.broadcast(weight, 0)
    assert torch.equal(weight, net[0].weight)


def sync_batch_norm_equals_one_process(rank: Rank) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    reference = copy.deepcopy(net)
    module = DistributedDataParallel(
        nn.SyncBatchNorm.convert_sync_batchnorm(net).npu(), device_ids=[rank.rank]
    )
    batch = torch.randn(4 * rank.world_size, 4)
    expected = reference(batch)
    expected.pow(2).mean().backward()
    rows = slice(4 * rank.rank, 4 * (rank.rank + 1))
    found = module(batch[rows].npu())
    found.pow(2).mean().backward()
    torch.testing.assert_close(
        found.detach().cpu(), expected[rows].detach(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        net[1].running_var.cpu(), reference[1].running_var, rtol=1e-4, atol=1e-5
    )
    for p, q in zip(reference.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad.cpu(), rtol=1e-3, atol=1e-5)


def zero_redundancy_optimizer(rank: Rank) -> None:
    reference = mlp()
    module = DistributedDataParallel(mlp().npu(), device_ids=[rank.rank])
    sharded = ZeroRedundancyOptimizer(module.parameters(), torch.optim.Adam, lr=0.1)
    batch = torch.randn(8, 16)
    dist.broadcast(batch_npu := batch.npu(), 0)
    train(reference, torch.optim.Adam(reference.parameters(), 0.1), batch_npu.cpu())
    train(module, sharded, batch_npu)
    assert_same_parameters(reference, module)


def device_meshes(rank: Rank) -> None:
    flat = init_device_mesh("npu", (rank.world_size,))
    assert flat.device_type == "npu"
    assert flat.get_local_rank() == rank.rank
    square = init_device_mesh(
        "npu", (2, rank.world_size // 2), mesh_dim_names=("dp", "tp")
    )
    x = on_npu([1.0])
    dist.all_reduce(x, group=square["tp"].get_group())
    assert x.item() == rank.world_size // 2


def dtensor_distributes_redistributes_and_multiplies(rank: Rank) -> None:
    world = rank.world_size
    mesh = init_device_mesh("npu", (world,))
    torch.manual_seed(0)
    whole = torch.randn(8, 8)
    rows = distribute_tensor(whole.npu(), mesh, [Shard(0)])
    assert rows.to_local().device == rank.device
    assert rows.to_local().shape == (8 // world, 8)
    copies = distribute_tensor(whole.npu(), mesh, [Replicate()])
    torch.testing.assert_close((rows @ copies).full_tensor().cpu(), whole @ whole)
    columns = rows.redistribute(mesh, [Shard(1)])
    assert columns.to_local().shape == (8, 8 // world)
    torch.testing.assert_close(columns.full_tensor().cpu(), whole)
    partial = DTensor.from_local(torch.ones(2, 2, device="npu"), mesh, [Partial()])
    assert partial.full_tensor().tolist() == [[world] * 2] * 2


def dtensor_random_numbers(rank: Rank) -> None:
    mesh = init_device_mesh("npu", (rank.world_size,))
    torch.manual_seed(0)
    x = rand(8, 4, device_mesh=mesh, placements=[Shard(0)])
    numbers = x.full_tensor().flatten().tolist()
    assert len(set(numbers)) > 28, "the shards repeat each other"
    copy_here = rand(4, device_mesh=mesh, placements=[Replicate()]).to_local().clone()
    copy_there = copy_here.clone()
    dist.broadcast(copy_there, 0)
    assert torch.equal(copy_here, copy_there)
    assert functional.dropout(x, 0.5).full_tensor().eq(0).any()


def tensor_parallel_equals_one_process(rank: Rank) -> None:
    mesh = init_device_mesh("npu", (rank.world_size,))
    torch.manual_seed(0)
    reference = Feedforward()
    module = copy.deepcopy(reference).npu()
    parallelize_module(
        module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    torch.manual_seed(1)
    x = torch.randn(4, 16)
    expected, found = reference(x), module(x.npu())
    whole = found.full_tensor() if isinstance(found, DTensor) else found
    torch.testing.assert_close(expected, whole.cpu(), rtol=1e-4, atol=1e-5)
    expected.sum().backward()
    found.sum().backward()
    torch.testing.assert_close(
        reference.up.weight.grad,
        module.up.weight.grad.full_tensor().cpu(),
        rtol=1e-4,
        atol=1e-5,
    )


def sequence_parallel_and_loss_parallel(rank: Rank) -> None:
    mesh = init_device_mesh("npu", (rank.world_size,))
    torch.manual_seed(0)
    reference = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 8, bias=False))
    head = copy.deepcopy(reference).npu()
    shard_of_vocabulary = ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    )
    parallelize_module(head, mesh, {"0": SequenceParallel(), "1": shard_of_vocabulary})
    sequence = torch.randn(2, 4, 16)
    part = 4 // rank.world_size
    mine = sequence[:, part * rank.rank : part * (rank.rank + 1)].npu()
    expected = functional.cross_entropy(
        reference(sequence).flatten(0, 1), torch.zeros(8, dtype=torch.long)
    )
    with loss_parallel():
        output = head(mine)
        target = torch.zeros(8, dtype=torch.long, device="npu")
        loss = functional.cross_entropy(output.flatten(0, 1), target)
        loss.backward()
    found = loss.full_tensor() if isinstance(loss, DTensor) else loss
    torch.testing.assert_close(expected, found.cpu(), rtol=1e-4, atol=1e-5)


def fsdp2_equals_one_process(rank: Rank) -> None:
    mesh = init_device_mesh("npu", (rank.world_size,))
    torch.manual_seed(7)
    batch = torch.randn(8 * rank.world_size, 16)
    mine = batch[8 * rank.rank : 8 * (rank.rank + 1)].npu()
    reference, module = mlp(), mlp().npu()
    for part in (module[0], module[2], module):
        fully_shard(part, mesh=mesh)
    for net, rows in ((reference, batch), (module, mine)):
        optimizer = torch.optim.AdamW(net.parameters(), 0.01)
        train(net, optimizer, rows, max_norm=1.0)
    assert module[0].weight.to_local().device == rank.device
    assert_same_parameters(reference, module, rtol=1e-3, atol=1e-4)


def fsdp2_with_a_bfloat16_policy_and_its_state_dict() -> None:
    module = mlp().npu()
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    fully_shard(module, mp_policy=policy)
    output = module(torch.randn(8, 16).npu())
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    whole = {name: v.full_tensor() for name, v in module.state_dict().items()}
    assert torch.equal(whole["0.weight"].cpu(), mlp()[0].weight)


def fsdp2_with_tensor_parallel(rank: Rank) -> None:
    mesh = init_device_mesh(
        "npu", (rank.world_size // 2, 2), mesh_dim_names=("dp", "tp")
    )
    torch.manual_seed(0)
    module = Feedforward().npu()
    parallelize_module(
        module, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    fully_shard(module, mesh=mesh["dp"])
    module(torch.randn(4, 16).npu()).sum().backward()
    torch.optim.AdamW(module.parameters(), foreach=True).step()
    assert module.up.weight.full_tensor().isfinite().all()


def fsdp1_equals_one_process(rank: Rank) -> None:
    torch.manual_seed(7)
    batch = torch.randn(8 * rank.world_size, 16)
    mine = batch[8 * rank.rank : 8 * (rank.rank + 1)].npu()
    reference = mlp()
    module = FullyShardedDataParallel(mlp().npu(), device_id=rank.rank)
    train(reference, torch.optim.SGD(reference.parameters(), 0.1), batch)
    train(module, torch.optim.SGD(module.parameters(), 0.1), mine)
    with FullyShardedDataParallel.summon_full_params(module):
        assert_same_parameters(reference, module)


def distributed_checkpoint_of_an_fsdp2_model() -> None:
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder, 0)
        module = mlp().npu()
        fully_shard(module)
        weight = module[0].weight.full_tensor().clone()
        dcp.save({"m": get_model_state_dict(module)}, checkpoint_id=folder[0])
        with torch.no_grad():
            module[0].weight.zero_()
        state = {"m": get_model_state_dict(module)}
        dcp.load(state, checkpoint_id=folder[0])
        assert torch.equal(state["m"]["0.weight"].full_tensor(), weight)
        dist.barrier()


def pipeline_of_two_stages(rank: Rank) -> None:
    pair = dist.new_group([0, 1])
    if rank.rank >= 2:
        return
    torch.manual_seed(rank.rank)
    layer = nn.Linear(8, 8).npu()
    stage = PipelineStage(layer, rank.rank, 2, rank.device, group=pair)
    schedule = ScheduleGPipe(
        stage, 2, loss_fn=lambda output, target: (output - target).pow(2).mean()
    )
    if rank.rank == 0:
        schedule.step(torch.randn(4, 8).npu())
    else:
        schedule.step(target=torch.zeros(4, 8).npu())
    assert layer.weight.grad.device == rank.device
