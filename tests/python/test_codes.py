# SPDX-License-Identifier: Apache-2.0
"""test_codes.py - moegen.torch.experts with matrices of codes, against the same matrices dequantised in float64."""
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

import moegen.torch  # noqa: E402
from test_torch import LIMIT, eager, error  # noqa: E402

E, K, H, I = 4, 2, 256, 128
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def nibbles(codes):
    """The lower one first, along the last dimension."""
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()


def repeated(scale, by, n):
    return scale.double().repeat_interleave(by, -1)[..., :n]


def mxfp4(out, n, g):
    codes = torch.randint(0, 256, (E, out, n // 32, 16), generator=g, dtype=torch.uint8)
    scale = torch.randint(118, 124, (E, out, n // 32), generator=g, dtype=torch.uint8)
    return codes, scale, E2M1[nibbles(codes.flatten(-2))] * repeated(2.0 ** (scale.double() - 127), 32, n)


def mxfp4_flat(out, n, g):
    """As DeepSeek-V4 has it."""
    codes, scale, values = mxfp4(out, n, g)
    return codes.flatten(-2), scale.view(torch.float8_e8m0fnu), values


def fp8_block(out, n, g):
    codes = (torch.randn(E, out, n, generator=g) * 30).to(torch.float8_e4m3fn)
    scale = torch.rand(E, -(-out // 128), -(-n // 128), generator=g) / 400
    return codes, scale, codes.double() * repeated(repeated(scale, 128, n).mT, 128, out).mT


def fp8_row(out, n, g):
    codes = (torch.randn(E, out, n, generator=g) * 30).to(torch.float8_e4m3fn)
    scale = torch.rand(E, out, 1, generator=g) / 400
    return codes, scale, codes.double() * scale.double()


def int4(out, n, g, group=32):
    codes = torch.randint(0, 256, (E, out, n // 2), generator=g, dtype=torch.uint8)
    scale = (torch.rand(E, out, n // group, generator=g) / 60).bfloat16()
    return codes, scale, (nibbles(codes) - 8).double() * repeated(scale, group, n)


def int4_of_128(out, n, g):
    return int4(out, n, g, 128)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("T", [1, 40])
@pytest.mark.parametrize("form", [mxfp4, mxfp4_flat, fp8_block, fp8_row, int4, int4_of_128], ids=lambda f: f.__name__)
def test_values(form, T, dtype, interleaved):
    if interleaved and form in (fp8_block, fp8_row):
        pytest.skip("no checkpoint has it")
    g = torch.Generator().manual_seed(T)
    gate_up, gate_up_scale, true_gate_up = form(2 * I, H, g)
    down, down_scale, true_down = form(H, I, g)
    x = torch.randn(T, H, generator=g).to(dtype).requires_grad_()
    ids, weights = torch.stack([torch.randperm(E, generator=g)[:K] for _ in range(T)]), torch.rand(T, K, generator=g).requires_grad_()
    bias = {n: torch.randn(E, s, generator=g).to(dtype) for n, s in (("gate_up_bias", 2 * I), ("down_bias", H))}
    y = moegen.torch.experts(x, ids, weights, gate_up, down, gate_up_scale=gate_up_scale, down_scale=down_scale,
                             interleaved=interleaved, **bias)
    p = {"x": x.detach().double().requires_grad_(), "weights": weights.detach().double().requires_grad_()}
    want = eager(ids=ids, gate_up=true_gate_up, down=true_down, interleaved=interleaved, **p, **{n: b.double() for n, b in bias.items()})
    assert y.dtype == dtype and error(y, want) < 2 * LIMIT[dtype]
    dy = torch.randn(T, H, generator=g).to(dtype)
    y.backward(dy)
    want.backward(dy.double())
    assert error(x.grad, p["x"].grad) < 3 * LIMIT[dtype] and error(weights.grad, p["weights"].grad) < 3 * LIMIT[dtype]
    with torch.no_grad():
        assert torch.equal(y, moegen.torch.experts(x, ids, weights, gate_up, down, gate_up_scale=gate_up_scale, down_scale=down_scale,
                                                   interleaved=interleaved, **bias))


def test_wrong():
    g = torch.Generator().manual_seed(1)
    gate_up, gate_up_scale, _ = mxfp4(2 * I, H, g)
    down, down_scale, _ = mxfp4(H, I, g)
    given = torch.randn(3, H), torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1), gate_up, down
    with pytest.raises(moegen.ArgumentError, match="codes, which have scales"):
        moegen.torch.experts(*given)
    with pytest.raises(moegen.ArgumentError, match="down_scale"):
        moegen.torch.experts(*given, gate_up_scale=gate_up_scale)
    with pytest.raises(moegen.ArgumentError, match="no scales of"):
        moegen.torch.experts(*given, gate_up_scale=gate_up_scale, down_scale=down_scale[:, :, 1:])
    with pytest.raises(moegen.ArgumentError, match="no scales of"):   # as many
        moegen.torch.experts(*given, gate_up_scale=gate_up_scale, down_scale=down_scale.mT)
    with pytest.raises(moegen.ArgumentError, match="frozen"):
        moegen.torch.experts(*given, gate_up_scale=gate_up_scale, down_scale=down_scale, down_bias=torch.zeros(E, H, requires_grad=True))


@pytest.mark.parametrize("first, second", [(fp8_row, fp8_block), (fp8_block, fp8_row), (int4, int4_of_128), (int4_of_128, int4)])
def test_scales_of_two_kinds(first, second):
    """A kernel would read past those that are fewer."""
    g = torch.Generator().manual_seed(2)
    (gate_up, gate_up_scale, _), (down, down_scale, _) = first(2 * I, H, g), second(H, I, g)
    with pytest.raises(moegen.ArgumentError, match="down_scale .*no scales of .*, one for"):
        moegen.torch.experts(torch.randn(3, H), torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1), gate_up, down,
                             gate_up_scale=gate_up_scale, down_scale=down_scale)


def test_blocks_as_many_as_rows():
    g = torch.Generator().manual_seed(3)
    (gate_up, gate_up_scale, first), (down, down_scale, second) = fp8_block(2, H, g), fp8_block(H, 1, g)   # [E, 1, 2], not [E, 2, 1]
    x, ids, weights = torch.randn(5, H, generator=g), torch.arange(5)[:, None] % E, torch.ones(5, 1)
    y = moegen.torch.experts(x, ids, weights, gate_up, down, gate_up_scale=gate_up_scale, down_scale=down_scale)
    assert error(y, eager(x.double(), ids, weights.double(), first, second)) < 20 * LIMIT[torch.float32]   # one product is all of a sum
