"""Memory of other libraries that sleeps by tags: models, captured graphs and arrays are right when it wakes."""

import gc

import aquifer
import pytest

torch = pytest.importorskip("torch")
if not aquifer.is_simulated():
    aquifer.set_allocators("torch")


def train(sleeps: bool) -> list[float]:
    """A training step that is captured, and replayed with a sleep before each."""
    torch.manual_seed(7)
    with aquifer.tag("model"):
        net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 10)).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
        images = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).cuda()
        labels = torch.randint(10, (64,), generator=torch.Generator().manual_seed(2)).cuda()

        def step() -> "torch.Tensor":
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
    losses = []
    for _ in range(10):
        if sleeps:
            free = aquifer.memory_info()[0]
            with aquifer.sleep(["model"]) as slept:
                assert slept.nbytes > 4 << 20
                assert aquifer.memory_info()[0] >= free + slept.nbytes
                # The card is another's meanwhile.
                other = aquifer.DeviceBuffer(size=1 << 30)
                del other
        graph.replay()
        torch.cuda.synchronize()
        losses.append(loss.item())
    del graph, loss, net, optimizer, images, labels
    gc.collect()
    torch.cuda.synchronize()
    return losses


def test_a_models_captured_step_is_bit_for_bit_the_same():
    awake, asleep = train(sleeps=False), train(sleeps=True)
    assert awake == asleep, (awake, asleep)
    assert len(set(awake)) == len(awake)


def test_arrays_of_three_libraries():
    cupy, numba = pytest.importorskip("cupy"), pytest.importorskip("numba.cuda")
    with aquifer.tag("arrays"):
        tensor = torch.arange(1_000_000, device="cuda")
        previous = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(aquifer.cupy_allocator)
        array = cupy.arange(1_000_000)
        cupy.cuda.set_allocator(previous)
        buffer = aquifer.to_device(b"a buffer")
        view = numba.as_cuda_array(array)
    pointers = tensor.data_ptr(), array.data.ptr
    for _ in range(3):
        with aquifer.sleep("arrays") as slept:
            assert slept.nbytes >= 16_000_000
        assert (tensor.data_ptr(), array.data.ptr) == pointers
        assert int(tensor.sum()) == int(array.sum()) == 999_999 * 500_000
        assert int(view.copy_to_host()[-1]) == 999_999
        assert buffer.tobytes() == b"a buffer"
