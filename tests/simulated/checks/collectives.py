"""``torch.distributed`` over backend ``hccl``."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from tests.simulated.parts import on_npu, raises
from tests.simulated.rank_process import Rank, restart_group


def the_group_is_hccl(rank: Rank) -> None:
    assert dist.get_backend() == "hccl"
    assert dist.get_world_size() == rank.world_size
    assert dist.get_rank() == rank.rank


def all_reduce_sums(rank: Rank) -> None:
    world = rank.world_size
    x = on_npu([1.0 + rank.rank] * 4)
    dist.all_reduce(x)
    assert x.device == rank.device
    assert x.tolist() == [world * (world + 1) / 2] * 4


def all_reduce_of_other_operations_and_types(rank: Rank) -> None:
    world = rank.world_size
    x = on_npu(float(rank.rank))
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x.item() == world - 1
    x = on_npu([float(rank.rank)])
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.item() == (world - 1) / 2
    x = on_npu([2.0], dtype=torch.bfloat16)
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    assert x.item() == 2**world
    x = on_npu([rank.rank == 1, True, False])
    dist.all_reduce(x)
    assert x.tolist() == [True, True, False]
    x = on_npu([rank.rank == 1, True, False])
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    assert x.tolist() == [False, True, False]


def all_reduce_async_and_of_a_view(rank: Rank) -> None:
    x = on_npu([1])
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.is_completed()
    assert x.item() == rank.world_size
    (future_value,) = work.get_future().value()
    assert future_value.is_npu
    whole = torch.zeros(4, device="npu")
    dist.all_reduce(whole[1:3].add_(1))
    assert whole.tolist() == [0, rank.world_size, rank.world_size, 0]


def reductions_that_hccl_lacks_raise() -> None:
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        raises(RuntimeError, lambda op=op: dist.all_reduce(on_npu([1]), op), "HCCL")


def broadcast_reduce_and_barrier(rank: Rank) -> None:
    x = on_npu([float(rank.rank)] * 3)
    dist.broadcast(x, 1)
    assert x.tolist() == [1, 1, 1]
    x = on_npu([1.0])
    dist.reduce(x, 0)
    assert rank.rank != 0 or x.item() == rank.world_size
    x = on_npu([float(rank.rank)])
    dist.reduce(x, 1, dist.ReduceOp.AVG)
    assert rank.rank != 1 or x.item() == (rank.world_size - 1) / 2
    dist.barrier()
    dist.barrier(device_ids=[rank.rank])


def gathers_and_scatter(rank: Rank) -> None:
    world = rank.world_size
    mine = on_npu([float(rank.rank)] * 2)
    parts = [torch.zeros(2, device="npu") for _ in range(world)]
    dist.all_gather(parts, mine)
    assert [part.tolist() for part in parts] == [[r, r] for r in range(world)]

    whole = torch.zeros(world * 2, device="npu")
    dist.all_gather_into_tensor(whole, mine)
    assert whole.tolist() == [r for r in range(world) for _ in range(2)]

    parts = [torch.zeros(2, device="npu") for _ in range(world)]
    dist.gather(mine, parts if rank.rank == 0 else None, dst=0)
    assert rank.rank != 0 or [p[0].item() for p in parts] == list(range(world))

    x = torch.zeros(1, device="npu")
    pieces = [on_npu([float(r)]) for r in range(world)]
    dist.scatter(x, pieces if rank.rank == 0 else None, src=0)
    assert x.item() == rank.rank


def reduce_scatters(rank: Rank) -> None:
    world = rank.world_size
    x = torch.zeros(2, device="npu")
    dist.reduce_scatter(x, [on_npu([float(r)] * 2) for r in range(world)])
    assert x.tolist() == [rank.rank * world] * 2
    source = torch.arange(world * 2.0, device="npu")
    dist.reduce_scatter_tensor(x, source, op=dist.ReduceOp.AVG)
    assert x.tolist() == [2 * rank.rank, 2 * rank.rank + 1]
    assert source.tolist() == list(range(world * 2))
    work = dist.reduce_scatter_tensor(x, source, async_op=True)
    work.get_future().wait()
    assert x.tolist() == [2 * rank.rank * world, (2 * rank.rank + 1) * world]


def all_to_alls(rank: Rank) -> None:
    world = rank.world_size
    source = torch.arange(world, device="npu", dtype=torch.float) + 10 * rank.rank
    out = torch.zeros(world, device="npu")
    dist.all_to_all_single(out, source)
    assert out.tolist() == [10.0 * r + rank.rank for r in range(world)]
    outs = [torch.zeros(2, device="npu") for _ in range(world)]
    dist.all_to_all(outs, [on_npu([float(rank.rank), float(r)]) for r in range(world)])
    assert [t.tolist() for t in outs] == [[r, rank.rank] for r in range(world)]


def point_to_point(rank: Rank) -> None:
    after = (rank.rank + 1) % rank.world_size
    before = (rank.rank - 1) % rank.world_size
    x, y = on_npu([float(rank.rank)]), torch.zeros(1, device="npu")
    if rank.rank == 0:
        dist.send(x, after)
        dist.recv(y, before)
    else:
        dist.recv(y, before)
        dist.send(x, after)
    assert y.item() == before
    y.zero_()
    for work in (dist.isend(x, after), dist.irecv(y, before)):
        work.wait()
    assert y.item() == before
    y.zero_()
    batch = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert y.item() == before


def object_collectives(rank: Rank) -> None:
    found = [None] * rank.world_size
    dist.all_gather_object(found, {"rank": rank.rank})
    assert found == [{"rank": r} for r in range(rank.world_size)]
    values = ["x" if rank.rank == 0 else None]
    dist.broadcast_object_list(values, 0)
    assert values == ["x"]
    gathered = [None] * rank.world_size if rank.rank == 0 else None
    dist.gather_object(rank.rank, gathered, dst=0)
    assert rank.rank != 0 or gathered == list(range(rank.world_size))


def subgroups(rank: Rank) -> None:
    pair = dist.new_group([0, 1])
    x = on_npu([1.0])
    if rank.rank < 2:
        dist.all_reduce(x, group=pair)
    assert x.item() == (2 if rank.rank < 2 else 1)
    gloo = dist.new_group(backend="gloo")
    c = torch.ones(1)
    dist.all_reduce(c, group=gloo)
    assert c.item() == rank.world_size


def coalesced_collectives(rank: Rank) -> None:
    world = rank.world_size
    xs = [on_npu([1.0, 2.0]), on_npu([3.0])]
    dist.all_reduce_coalesced(xs)
    assert [x.tolist() for x in xs] == [[world, 2 * world], [3 * world]]
    everyone = list(range(world))
    gathered = functional.all_gather_into_tensor_coalesced(
        [on_npu([float(rank.rank)]), on_npu([1.0, 1.0])], everyone
    )
    assert gathered[0].tolist() == everyone
    assert gathered[1].tolist() == [1.0] * (2 * world)
    scattered = functional.reduce_scatter_tensor_coalesced(
        [torch.arange(world * 1.0, device="npu"), torch.ones(world, device="npu")],
        "sum",
        [0, 0],
        everyone,
    )
    assert [t.tolist() for t in scattered] == [[rank.rank * world], [world]]


def functional_collectives(rank: Rank) -> None:
    everyone = list(range(rank.world_size))
    assert functional.all_reduce(on_npu([1.0]), "sum", everyone).item() == len(everyone)


def tensors_that_are_not_contiguous_raise_or_are_right(rank: Rank) -> None:
    x = torch.arange(6.0, device="npu").view(2, 3).t()
    expected = torch.arange(6.0).view(2, 3).t() * rank.world_size
    try:
        dist.all_reduce(x)
    except (RuntimeError, ValueError) as error:
        refused = "contiguous" in str(error)
    else:
        refused = False
    assert refused or torch.equal(x.cpu(), expected)


def a_cpu_tensor_on_an_hccl_group_raises() -> None:
    raises((RuntimeError, ValueError), lambda: dist.all_reduce(torch.ones(1)), "cpu")


def the_gloo_backend_inside_can_be_reached() -> None:
    from npu_notebook.devices.simulated.install import gloo_of

    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("npu"))
    assert backend.name() == "hccl"
    gloo = gloo_of(backend)
    assert isinstance(gloo, dist.ProcessGroupGloo)
    assert gloo_of(gloo) is None


def the_group_is_made_again_with_gloo_for_the_cpu(rank: Rank) -> None:
    restart_group("cpu:gloo,npu:hccl")
    assert dist.get_backend() == "cpu:gloo,npu:hccl"
    x, c = on_npu([1.0]), torch.ones(1)
    dist.all_reduce(x)
    dist.all_reduce(c)
    assert x.item() == c.item() == rank.world_size
    restart_group("hccl")


def the_group_is_made_again_without_naming_a_backend(rank: Rank) -> None:
    restart_group(None, device_id=rank.device)
    x = on_npu([1.0])
    dist.all_reduce(x)
    assert x.item() == rank.world_size
    restart_group("hccl")
