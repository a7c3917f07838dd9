# SPDX-License-Identifier: Apache-2.0
"""test_kernel.py - engines, kernels and their calls, with numpy alone."""
import logging
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import moegen
from conftest import BLOCK, E, H, I, TOP_K, Problem, error

SPEC = {"kernel": "moe_forward", "dtype": "f32", "H": H, "I_TP": I, "E": E, "top_k": TOP_K, "block_size": BLOCK}
INDEX = {"kernel": "moe_index", "E": E, "top_k": TOP_K, "block_size": BLOCK}
MODEL = pathlib.Path(__file__).parents[2] / "specs" / "layer-a.yaml"


@pytest.fixture(scope="module")
def forward():
    return moegen.kernel(SPEC)


@pytest.fixture(scope="module")
def index():
    return moegen.kernel(INDEX)


@pytest.mark.parametrize("T", [1, 3, 37])
@pytest.mark.parametrize("threads", [1, 3])
def test_forward(forward, index, rng, T, threads):
    p = Problem(rng, T, index)
    y = forward(**p.tensors, threads=threads)["output"]
    assert y.dtype == np.float32 and y.shape == (T + 1, H)
    assert error(y[:T], p.truth()) < 2e-6
    assert np.array_equal(y, forward(**p.tensors, threads=2)["output"])


def test_out_and_layouts(forward, index, rng):
    p = Problem(rng, 5, index)
    want = forward(**p.tensors)["output"]
    y = np.full((6, H), np.nan, dtype=np.float32)
    got = forward(**p.tensors, out={"output": y})
    assert got["output"] is y and np.array_equal(y, want)
    strided = dict(p.tensors, hidden_states=np.asfortranarray(p.x), gate_up_proj_weight=p.gate_up[::-1][::-1])
    assert np.array_equal(forward(**strided)["output"], want)
    misaligned = np.frombuffer(bytearray(p.x.nbytes + 4), dtype=np.uint8)[4:].view(np.float32).reshape(p.x.shape)
    misaligned[:] = p.x
    assert np.array_equal(forward(**dict(p.tensors, hidden_states=misaligned))["output"], want)
    with pytest.raises(moegen.ArgumentError, match="contiguous"):
        forward(**p.tensors, out={"output": np.zeros((H, 6), dtype=np.float32).T})
    y.flags.writeable = False
    with pytest.raises(moegen.ArgumentError, match="writeable"):
        forward(**p.tensors, out={"output": y})


def test_bf16(index, rng):
    kernel, p = moegen.kernel(SPEC, dtype="bf16"), Problem(rng, 7, index)
    bits = {name: (a.view(np.uint32) + 0x8000 >> 16).astype(np.uint16) if a.dtype == np.float32 else a for name, a in p.tensors.items()}
    y = kernel(**bits)["output"]
    raw = y if y.dtype == np.uint16 else y.view(np.uint16)
    assert error((raw.astype(np.uint32) << 16).view(np.float32)[:7], p.truth()) < 2e-2
    ml_dtypes = pytest.importorskip("ml_dtypes")
    small = {name: a.astype(ml_dtypes.bfloat16) if a.dtype == np.float32 else a for name, a in p.tensors.items()}
    assert kernel(**small)["output"].dtype == ml_dtypes.bfloat16


def test_indices(index):
    ids = np.array([[0, 3], [2, 1]])
    got = index(expert_index=ids.astype(np.int64))
    assert all(np.array_equal(a, b) for a, b in zip(got.values(), index(expert_index=ids.astype(np.int32)).values()))
    with pytest.raises(moegen.DataError):
        index(expert_index=np.array([[0, E]], dtype=np.int32))
    with pytest.raises(IndexError):
        index(expert_index=np.array([[0, 1 << 40]]))


def test_inout(rng):
    kernel = moegen.kernel({"kernel": "grouped_gemm", "op": "dW", "dtype": "f32", "N": 24, "K": 16, "E": 2, "top_k": 1},
                           accumulate_grads=True)
    x, dy = rng.standard_normal((5, 16)).astype(np.float32), rng.standard_normal((5, 24)).astype(np.float32)
    dw = np.ones((2, 24, 16), dtype=np.float32)
    got = kernel(m_sizes=np.array([2, 3], dtype=np.int32), X=x, dY=dy, dW=dw)
    assert got["dW"] is dw
    assert error(dw - 1, np.stack([dy[:2].T @ x[:2], dy[2:].T @ x[2:]])) < 1e-5


def test_wrong_calls(forward, index, rng):
    p = Problem(rng, 3, index)
    with pytest.raises(moegen.ArgumentError, match="no tensor 'hidden'.*hidden_states"):
        forward(hidden=p.x)
    with pytest.raises(ValueError, match="missing|not bound"):
        forward(hidden_states=p.x)
    with pytest.raises(ValueError, match=r"f64 \[4, 64\], expected f32"):
        forward(**dict(p.tensors, hidden_states=p.x.astype(np.float64)))
    with pytest.raises(ValueError, match="complex64"):
        forward(**dict(p.tensors, hidden_states=p.x.astype(np.complex64)))
    with pytest.raises(ValueError, match="hidden_states.* mask"):
        forward(**dict(p.tensors, hidden_states=np.ma.masked_array(p.x, p.x > 0)))
    with pytest.raises(ValueError, match="no output"):
        forward(**p.tensors, out={"hidden_states": p.x})
    with pytest.raises(ValueError, match=r"expected f32 \[T\+1, 64\] with T = 9"):
        forward(**p.tensors, sizes={"T": 9})
    fixed = moegen.kernel({"kernel": "moe_index", "E": 8, "top_k": 2, "block_size": 16, "T": 8})
    with pytest.raises(moegen.ArgumentError, match=r"T is 5 \(from 'expert_index'\), and the spec fixes 8"):
        fixed(expert_index=np.zeros((5, 2), np.int32))
    with pytest.raises(ValueError, match="threads: -1"):
        moegen.Engine(threads=-1)
    for threads, kind in ((1.5, TypeError), ("2", TypeError), (1 << 32, ValueError), (2000, ValueError)):   # C would see 0 threads
        with pytest.raises(kind, match="threads") as refused:
            forward(**p.tensors, threads=threads)
        assert isinstance(refused.value, moegen.MoegenError)
    with pytest.raises(moegen.ArgumentError, match="threads"):
        moegen.Engine(threads=(1 << 32) + 1)
    for size in ((1 << 64) + 9, 1 << 64, "9"):
        with pytest.raises(moegen.MoegenError, match="N: "):
            index(expert_index=p.ids, sizes={"N": size})
    with pytest.raises(MemoryError) as refused:
        index(expert_index=p.ids, sizes={"N": 1 << 44})
    assert isinstance(refused.value, moegen.OutOfMemoryError)
    assert error(forward(**p.tensors)["output"][:3], p.truth()) < 2e-6   # after all of that


def test_what_is_refused_leaves_nothing_behind(forward, index, rng):
    p = Problem(rng, 3, index)
    forward(**p.tensors)
    with pytest.raises(moegen.ArgumentError, match="f64"):
        forward(**dict(p.tensors, hidden_states=p.x.astype(np.float64)))
    with pytest.raises(moegen.ArgumentError, match="not bound|no bound tensor"):   # not the first call's, whose memory may be gone
        forward(**dict(p.tensors, hidden_states=None))


def test_specs():
    with pytest.raises(moegen.SpecError) as caught:
        moegen.kernel("kernel: moe_forward\ndtype: f32\nH: 0\nI_TPP: 3\n")
    assert isinstance(caught.value, ValueError) and len(caught.value.diagnostics) > 2
    first = caught.value.diagnostics[0]
    assert first.file == "<spec>" and first.line > 0 and str(caught.value).startswith("<spec>:")
    assert any(d.hint and "I_TP" in d.hint for d in caught.value.diagnostics)
    with pytest.raises(moegen.SpecError, match="plan.tyle_rows"):
        moegen.kernel(SPEC, plan={"tyle_rows": 3})
    assert moegen.kernel(SPEC, plan={"tile_rows": 3}).facts.name == "moe_forward"
    kernel = moegen.kernel(MODEL, "forward", H=256, I_TP=128)
    assert kernel.param("H") == "256" and kernel.param("affinity.scale") == "post" and kernel.param("frogs") is None
    with pytest.raises(moegen.SpecError, match="layer-a.yaml"):
        moegen.kernel(MODEL, "sideways")
    with pytest.raises(FileNotFoundError) as missing:
        moegen.kernel(pathlib.Path("/no/such/file.yaml"))
    assert isinstance(missing.value, moegen.FileError)
    with pytest.raises(moegen.FileError, match="cannot read"):
        moegen.kernel(MODEL.parent)
    with pytest.raises(moegen.SpecError, match=r"pathlib.Path\('specs/layer-a.yaml'\), 'forward'"):
        moegen.kernel("specs/layer-a.yaml:forward")
    for wrong in (b"kernel: router", 5, None, [SPEC], dict(SPEC, E=object())):
        with pytest.raises(TypeError) as kind:
            moegen.kernel(wrong)
        assert isinstance(kind.value, moegen.MoegenError)
    assert moegen.kernel(dict(SPEC, H=np.int64(H)), I_TP=np.int32(I)).param("H") == str(H)


def test_texts(tmp_path):
    for none in "\0", "\udc80":   # C would see what is before it, or nothing can be made of it
        for wrong in ({f"H{none}x": 64}, {"target": f"avx2{none}"}, {"plan": {f"tile_rows{none}": 6}}):
            with pytest.raises(moegen.SpecError, match="a character that is none"):
                moegen.kernel(SPEC, **wrong)
            with pytest.raises(moegen.SpecError, match="a character that is none"):
                moegen.check(SPEC, T=3, **wrong)
        for call in moegen.kernel, moegen.check:
            with pytest.raises(moegen.SpecError, match="name: .* a character that is none"):
                call(MODEL, f"forward{none}")
        with pytest.raises(moegen.SpecError):
            moegen.kernel(f"kernel: router{none}")
    with pytest.raises(moegen.ArgumentError, match="cache_dir"):
        moegen.Engine(cache_dir=tmp_path / "x\0y")
    with pytest.raises(moegen.SpecError, match="cc: "):
        moegen.Engine(cc="gcc\0")
    within: dict = {}
    within["plan"] = within
    for wrong in (lambda: moegen.kernel(within), lambda: moegen.kernel(SPEC, plan=within), lambda: moegen.kernel(SPEC, plan={1: 2}),
                  lambda: moegen.kernel(MODEL, 3)):
        with pytest.raises(moegen.KindError):
            wrong()
    odd = pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml"))   # a name that is no Unicode
    odd.write_text(MODEL.read_text())
    assert moegen.kernel(odd, "forward").facts.family == "moe_forward"
    with pytest.raises(ValueError, match="threads: 1025 is not in 0..1024"):
        moegen.Engine(threads=1025)


def test_facts(forward):
    f = forward.facts
    assert (f.family, f.dtype, f.flops_per_row) == ("moe_forward", "f32", 6 * H * I) and f.jit_seconds > 0
    assert forward.args[0] == moegen.Arg("hidden_states", "f32", "in", False, ("T+1", str(H)), forward.args[0].doc)
    assert {a.role for a in forward.args} == {"in", "out"} and "moe_forward" in repr(forward)


def test_generate():
    source = moegen.generate(SPEC, target="avx2", name="toy")
    assert "toy" in source.c and "#include" in source.h and "-mavx2" in source.cflags


def test_engine(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, logger="moegen"):
        engine = moegen.Engine(threads=1, cache_dir=tmp_path / "cache")
        kernel = engine.kernel(SPEC)
    assert engine.cache_dir == str(tmp_path / "cache") and kernel.facts.threads == 1
    assert any("moe_forward" in r.getMessage() for r in caplog.records)
    assert moegen.Engine(cache_dir="").cache_dir == ""
    del engine
    assert kernel.param("E") == str(E)   # it outlives the engine


def test_threads(forward, index, rng):
    problems = [Problem(rng, T, index) for T in (1, 5, 19, 33)]
    wrong = []

    def many(p):
        for _ in range(20):
            if error(forward(**p.tensors)["output"][:-1], p.truth()) > 2e-6:
                wrong.append(p)
    workers = [threading.Thread(target=many, args=(p,)) for p in problems]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_fork(forward, index, rng):
    p = Problem(rng, 9, index)
    forward(**p.tensors, threads=2)
    child = os.fork()
    if child == 0:
        wrong = True
        try:
            wrong = error(forward(**p.tensors, threads=2)["output"][:-1], p.truth()) > 2e-6
        finally:
            os._exit(int(wrong))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fork_inside_of_a_call(index):
    """Whatever a thread does with a kernel when another one forks, the child can call it."""
    ids, ended = np.zeros((1, TOP_K), dtype=np.int32) + range(TOP_K), []

    def fork(frame, event, _):
        if frame.f_code.co_name == "_call" and event == "line":
            child = os.fork()
            if child == 0:
                sys.settrace(None)
                signal.alarm(30)
                try:
                    index(expert_index=ids, threads=1)
                finally:
                    os._exit(0)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return fork
    before = sys.gettrace()
    sys.settrace(fork)
    try:
        index(expert_index=ids, threads=1)
    finally:
        sys.settrace(before)
    assert len(ended) > 2 and not any(ended)


def test_kernels_are_not_pickled(forward):
    with pytest.raises(TypeError, match="spec"):
        pickle.dumps(forward)


def test_program():
    results = moegen.check(SPEC, T=5)
    assert "moe_forward" in str(results)
    timed = moegen.bench(SPEC, T=5, seconds=0.01, threads=1)
    assert "samples_s" in str(timed)
    with pytest.raises(moegen.SpecError, match="H"):
        moegen.check(dict(SPEC, H=-1))


def test_library_is_missing():
    for path, why in (("/no/such.so", "/no/such.so is not there"), (__file__, "cannot be loaded"), (sys.executable, "cannot be loaded")):
        done = subprocess.run([sys.executable, "-c", "import moegen"], env=dict(os.environ, MOEGEN_LIBRARY=path), text=True,
                              stderr=subprocess.PIPE, check=False)
        assert "ImportError: moegen: " in done.stderr and why in done.stderr
