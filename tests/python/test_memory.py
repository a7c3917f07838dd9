# SPDX-License-Identifier: Apache-2.0
"""test_memory.py - pages of large tensors: used again when nobody has them, never while somebody does."""
import threading

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

import moegen.torch  # noqa: E402
from moegen import _memory, _pages, _tensors  # noqa: E402

SHAPE = (3, 1024, 1024)


def test_used_again():
    t = _memory.empty(SHAPE, torch.float32).fill_(7)
    at, part = t.data_ptr(), t[1]
    del t
    other = _memory.empty(SHAPE, torch.float32)
    assert other.data_ptr() != at and part.eq(7).all()   # a view keeps them
    del part
    assert _memory.empty(SHAPE, torch.float32).data_ptr() == at
    assert _memory.zeros(SHAPE, torch.float32).abs().max() == 0


@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_outputs_of_kernels(module, monkeypatch):
    """Each call's outputs are its own as long as there is one view of them; then the next call's."""
    pytest.importorskip("numpy")
    monkeypatch.setattr(_pages, "lend", _pages.Pages().lend)   # with no idle ones of others
    kernel = moegen.kernel({"kernel": "moe_layer", "router": "given", "op": "backward", "checkpoint": "recompute", "dtype": "f32",
                            "E": 4, "top_k": 1, "H": 512, "I_TP": 512, "block_size": 16, "weights": {"layout": "transposed"}})
    g = torch.Generator().manual_seed(1)
    given = {"hidden_states": torch.randn(4, 512, generator=g), "top_k_index": torch.arange(4, dtype=torch.int32).view(4, 1),
             "top_k_weights": torch.rand(4, 1, generator=g), "gate_up_proj_weight": torch.randn(4, 1024, 512, generator=g) / 16,
             "down_proj_weight": torch.randn(4, 512, 512, generator=g) / 16, "output_hidden_states_grad": torch.randn(4, 512, generator=g)}
    if module == "numpy":
        given = {name: t.numpy() for name, t in given.items()}

    def gradient(factor):
        return kernel(**{**given, "output_hidden_states_grad": factor * given["output_hidden_states_grad"]})["gate_up_proj_weight_grad"]

    def address(t):
        return t.ctypes.data if module == "numpy" else t.data_ptr()
    first = gradient(1)
    at, part, want = address(first), first[1], first[1] * 2
    del first
    second = gradient(2)
    assert address(second) != at and (second[1] == want).all() and (part * 2 == want).all()   # a view keeps its pages
    del part
    third = gradient(4)
    assert address(third) == at and (third[1] == 2 * want).all() and (second[1] == want).all()


WAYS = {"slice": lambda a: a[1], "dlpack": torch.from_dlpack, "memoryview": memoryview, "torch": torch.from_numpy,
        "bytes": lambda a: a.view("uint8"), "tensor": lambda t: t.numpy()[1:], "dlpack of a tensor": lambda t: t.__dlpack__(),
        "storage": lambda t: t.untyped_storage()}


@pytest.mark.parametrize("way", WAYS)
def test_kept_by(way, monkeypatch):
    """Whatever has been made of an output keeps its pages, alone."""
    pytest.importorskip("numpy")
    pool = _pages.Pages()
    monkeypatch.setattr(_pages, "lend", pool.lend)
    output = _tensors.empty(SHAPE, "f32", way in ("tensor", "dlpack of a tensor", "storage"))
    held = WAYS[way](output)
    del output
    assert not pool._back
    del held
    assert len(pool._back) == 1


def test_not_for_ever(monkeypatch):
    t = _memory.empty(SHAPE, torch.bfloat16)
    del t
    monkeypatch.setattr(_pages, "KEEP", 0.0)
    other = _memory.empty((1 << 24,), torch.bfloat16)
    assert not _pages._pages._idle and other.numel() == 1 << 24


def test_no_memory(monkeypatch):
    """What is idle gives way; if that is not enough the exception is moegen's, and other calls go on."""
    pages, rooms, new = _pages.Pages(), [0, 1], _pages.new
    view = pages.lend(_pages.LARGE)
    del view

    def scarce(size):
        if not rooms.pop(0):
            raise moegen.OutOfMemoryError("no")
        return new(size)
    monkeypatch.setattr(_pages, "new", scarce)
    assert len(pages.lend(3 * _pages.LARGE)) == 3 * _pages.LARGE and not pages._idle and not rooms
    monkeypatch.undo()
    for size in (1 << 60, 1 << 70):
        with pytest.raises(moegen.OutOfMemoryError, match=f"{size} bytes"):
            pages.lend(size)
    assert len(pages.lend(_pages.LARGE)) == _pages.LARGE


def test_rest(monkeypatch):
    """What is used again at once is not the system's to take; what nobody uses for a while is, and then is given back."""
    offered, seen = [], threading.Event()
    monkeypatch.setattr(_pages, "_advise", lambda pages, name: name == "MADV_FREE" and (offered.append(len(pages)), seen.set()))
    monkeypatch.setattr(_pages, "REST", 3600.0)
    pages = _pages.Pages()
    for _ in range(5):
        view = pages.lend(_pages.LARGE)
        del view
    assert not offered
    monkeypatch.setattr(_pages, "REST", 0.01)
    pages = _pages.Pages()
    view, other = pages.lend(_pages.LARGE), pages.lend(3 * _pages.LARGE)
    del other
    assert seen.wait(60) and offered == [3 * _pages.LARGE] and pages._is_watched
    monkeypatch.setattr(_pages, "KEEP", 0.0)
    del view
    for thread in threading.enumerate():
        if getattr(getattr(thread, "_target", None), "__self__", None) is pages:
            thread.join(60)
    assert not pages._is_watched and not pages._idle and pages._lent == 0
    assert len(pages.lend(_pages.LARGE)) == _pages.LARGE and pages._is_watched


def test_small_ones():
    assert _memory.empty((0, 3), torch.float32).shape == (0, 3) and _memory.zeros((5,), torch.bfloat16).eq(0).all()


def test_threads():
    def many(value):
        for _ in range(20):
            t = _memory.empty(SHAPE, torch.float32).fill_(value)
            if not t.eq(value).all():
                wrong.append(value)
    wrong = []
    workers = [threading.Thread(target=many, args=(n,)) for n in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


@pytest.mark.parametrize("T", [2, 40])
def test_gradients_on_used_pages(T):
    """Experts without a token have gradients of zero, whatever was there."""
    E, k, H, I = 12, 2, 512, 256   # noqa: E741
    g = torch.Generator().manual_seed(1)
    given = [torch.randn(T, H, generator=g), torch.randint(0, E - 2, (T, 1), generator=g).repeat(1, k) + torch.arange(k),
             torch.rand(T, k, generator=g), torch.randn(E, 2 * I, H, generator=g) / 16, torch.randn(E, H, I, generator=g) / 16]
    results = []
    for _ in range(2):
        dirty = [_memory.empty(t.shape, t.dtype).fill_(float("nan")) for t in given[3:]]
        del dirty
        p = [t.clone().requires_grad_() if t.is_floating_point() else t for t in given]
        moegen.torch.experts(*p).square().sum().backward()
        results.append([t.grad for t in p if t.grad is not None])
        assert all(r.isfinite().all() for r in results[-1])
    assert all(torch.equal(a, b) for a, b in zip(*results))
    unused = torch.ones(E, dtype=torch.bool)
    unused[given[1].unique()] = False
    assert results[0][2][unused].abs().max() == 0
