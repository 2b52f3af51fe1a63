"""PyTorch's tensors over the pool: its one allocator of the process."""

import gc
import threading

import aquifer
import pytest

torch = pytest.importorskip("torch")
if not aquifer.is_simulated():
    aquifer.set_allocators("torch")
resource = aquifer.use("pool(cuda) | statistics")


def live() -> int:
    gc.collect()
    return resource.pool_statistics()["live_bytes"]


def model() -> "torch.nn.Module":
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 16 * 16, 10),
    )


def train(device: str) -> list[float]:
    net = model().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(64, 3, 16, 16, generator=generator).to(device)
    labels = torch.randint(10, (64,), generator=generator).to(device)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_training_step_with_autograd():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    assert train("cuda") == pytest.approx(train("cpu"), rel=1e-4)
    torch.cuda.synchronize()


def test_side_streams_with_record_stream():
    side = torch.cuda.Stream()
    for round in range(50):
        a = torch.full((1 << 20,), float(round), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000)
            total = a.sum()
            a.record_stream(side)
        del a
        # Taken while the side stream reads: it must not be the block that it reads.
        b = torch.full((1 << 20,), -1.0, device="cuda")
        side.synchronize()
        assert total.item() == round * (1 << 20)
        del b


def test_a_captured_graph():
    static = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    warm = torch.cuda.Stream()
    with torch.cuda.stream(warm):
        (static * 2 + 1).relu().sum()
    torch.cuda.current_stream().wait_stream(warm)
    with torch.cuda.graph(graph):
        out = (static * 2 + 1).relu().sum()
    for value in range(5):
        static.fill_(value)
        other = torch.full((100_000,), 5.0, device="cuda")
        graph.replay()
        assert out.item() == 1000 * (2 * value + 1)
        assert other.sum().item() == 500_000
    del graph, out


def test_a_capture_keeps_what_its_own_thread_allocates():
    """Another thread's tensors come from the pool as ever: PyTorch's filter says whose stream is in capture."""
    static = torch.zeros(1 << 18, device="cuda")
    torch.cuda.synchronize()
    before = live()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            tensors = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(1057)]
            del tensors

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        thread = threading.Thread(target=work)
        thread.start()
        out = static * 2 + 1
        thread.join()
    kept = live() - before
    print(f"a capture beside 1,057 MiB of another thread keeps {kept / (1 << 20):.1f} MiB")
    assert kept <= 8 << 20
    for value in range(3):
        static.fill_(value)
        graph.replay()
        assert out.sum().item() == (1 << 18) * (2 * value + 1)
    del graph, out


def test_out_of_memory_is_pytorchs_error():
    with pytest.raises(torch.OutOfMemoryError, match="pool"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert torch.ones(10, device="cuda").sum().item() == 10


def test_threads():
    failures = []

    def work(seed: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for size in range(1, 400):
                    a = torch.full((size * 100,), float(seed), device="cuda")
                    if a.sum().item() != seed * size * 100:
                        failures.append((seed, size))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_all_goes_back():
    torch.cuda.synchronize()
    before = live()
    a = torch.empty(1 << 20, device="cuda")
    assert live() - before == 4 << 20
    del a
    assert live() == before


def test_a_device_buffer_is_a_tensor_and_back():
    tensor = torch.from_dlpack(aquifer.to_device(bytes(range(10))))
    assert tensor.sum().item() == 45
    buffer = aquifer.DeviceBuffer.from_dlpack(tensor)
    assert buffer.ptr == tensor.data_ptr()
    stream = torch.cuda.Stream()
    copy = aquifer.DeviceBuffer(size=10, stream=stream)
    copy.copy_from_device(buffer)
    assert copy.tobytes() == bytes(range(10))


def test_samples_of_opinfo():
    """PyTorch's operators on their own samples, compared with the CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    tried = wrong = 0
    skipped: list[str] = []
    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cuda"):
            continue
        try:
            samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))[:2]
        except Exception as error:
            skipped.append(f"{op.name}: {error!r}")
            continue
        for sample in samples:
            try:
                torch.manual_seed(0)
                on_cpu = op(sample.input, *sample.args, **sample.kwargs)
            except Exception as error:
                skipped.append(f"{op.name}: {error!r}")
                continue
            moved = sample.transform(lambda it: it.cuda() if isinstance(it, torch.Tensor) else it)
            try:
                on_gpu = op(moved.input, *moved.args, **moved.kwargs)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                skipped.append(f"{op.name}: {error!r}")
                continue
            tried += 1
            if not torch.is_tensor(on_cpu) or not torch.is_tensor(on_gpu):
                continue
            # Random on each device, or of a result that is not the only right one, or of memory beside a view.
            is_random = any(word in op.name for word in ("rand", "dropout", "empty", "normal", "multinomial", "bernoulli",
                                                         "uniform", "exponential", "geometric", "cauchy", "new_empty",
                                                         "rrelu", "fractional_max_pool", "as_strided", "svd", "eig", "qr", "lowrank", "nanquantile"))
            if is_random or on_cpu.is_sparse or on_cpu.layout != torch.strided:
                continue
            try:
                torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-3, atol=1e-3, equal_nan=True)
            except AssertionError as error:
                wrong += 1
                print("differs:", op.name, op.variant_test_name, str(error).splitlines()[:3])
    print(f"{tried} samples of {len(op_db)} operators, {wrong} differ, {len(skipped)} not tried")
    assert tried > 500
    assert wrong == 0, wrong
