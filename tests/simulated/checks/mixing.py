"""Which operators take CPU tensors beside NPU tensors: a reviewed list, both ways."""

import torch
from torch.nn import functional

from tests.simulated.parts import raises
from tests.simulated.rank_process import Rank


def an_index_may_stay_on_the_cpu(rank: Rank) -> None:
    x = torch.arange(6.0).npu()
    index = torch.tensor([1, 3])
    assert x[index].tolist() == [1, 3]
    assert x[index].device == rank.device
    assert x[torch.tensor([True, False] * 3)].tolist() == [0, 2, 4]
    x[index] = 0.0
    assert x.tolist() == [0, 0, 2, 0, 4, 5]
    x[index] = torch.ones(2, device="npu")
    x.index_put_((index,), torch.ones(2, device="npu"), accumulate=True)
    assert x.tolist() == [0, 2, 2, 2, 4, 5]


def values_put_by_index_must_be_on_the_device() -> None:
    x = torch.zeros(4).npu()
    index = torch.tensor([1, 3])
    values = torch.ones(2)
    raises(RuntimeError, lambda: x.index_put_((index,), values), "same device")


def a_cpu_tensor_is_not_indexed_by_an_npu_tensor() -> None:
    x = torch.arange(6.0)
    index = torch.tensor([1, 3]).npu()
    raises(RuntimeError, lambda: x[index], "device")


def other_indices_must_be_on_the_device() -> None:
    x = torch.ones(4, 3).npu()
    rows = torch.tensor([0, 1])
    raises(RuntimeError, lambda: x.index_select(0, rows), "device")
    raises(RuntimeError, lambda: x.index_fill(0, rows, 0.0), "device")
    raises(RuntimeError, lambda: x.index_add(0, rows, x[:2]), "device")
    raises(RuntimeError, lambda: x.index_copy(0, rows, x[:2]), "device")
    raises(RuntimeError, lambda: x.gather(0, rows[:, None]), "device")
    raises(RuntimeError, lambda: x.scatter(0, rows[:, None], 0.0), "device")
    raises(RuntimeError, lambda: x.take(rows), "device")
    raises(RuntimeError, lambda: functional.embedding(rows, x), "device")
    raises(RuntimeError, lambda: functional.embedding_bag(rows[None], x), "device")
    raises(RuntimeError, lambda: torch.repeat_interleave(x[:2], rows, dim=0), "device")


def copies_cross_devices() -> None:
    x, c = torch.zeros(3).npu(), torch.ones(3)
    x.copy_(c)
    assert x.tolist() == [1, 1, 1]
    c.copy_(x * 2)
    assert c.tolist() == [2, 2, 2]
    torch._foreach_copy_([x], [c * 2])
    assert x.tolist() == [4, 4, 4]


def foreach_lists_may_hold_several_devices() -> None:
    xs = [torch.ones(2), torch.ones(2, device="npu:0"), torch.ones(2, device="npu:1")]
    sums = torch._foreach_add(xs, xs)
    assert [str(s.device) for s in sums] == ["cpu", "npu:0", "npu:1"]
    assert all(s.tolist() == [2, 2] for s in sums)
    torch._foreach_mul_(xs, 3.0)
    assert all(x.tolist() == [3, 3] for x in xs)
    raises(RuntimeError, lambda: torch._foreach_add(xs[:1], [xs[1]]), "same device")


def a_cpu_number_is_read_but_not_written() -> None:
    x = torch.ones(3).npu()
    number = torch.tensor(2.0)
    assert (x * number).tolist() == [2, 2, 2]
    assert torch.where(x > 0, number, x).tolist() == [2, 2, 2]
    raises(RuntimeError, lambda: number.add_(x.sum()), "device")
    raises(RuntimeError, lambda: torch.add(x, x, out=torch.empty(3)), "device")


def lengths_of_packed_sequences_stay_on_the_cpu(rank: Rank) -> None:
    lengths = torch.tensor([5, 3])
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(2, 5, 3, device="npu"), lengths, batch_first=True
    )
    output, _ = torch.nn.LSTM(3, 4, batch_first=True).npu()(packed)
    assert output.data.device == rank.device
    padded, found = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    assert padded.shape == (2, 5, 4)
    assert found.tolist() == lengths.tolist()


def ctc_loss_takes_lengths_on_the_cpu() -> None:
    log_probs = torch.randn(5, 1, 4).log_softmax(-1)
    targets, inputs, lengths = (
        torch.tensor([[1, 2]]),
        torch.tensor([5]),
        torch.tensor([2]),
    )
    expected = functional.ctc_loss(log_probs, targets, inputs, lengths)
    found = functional.ctc_loss(log_probs.npu(), targets.npu(), inputs, lengths)
    torch.testing.assert_close(expected, found.cpu())
