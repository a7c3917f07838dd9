# SPDX-License-Identifier: Apache-2.0
"""test_models.py - moegen in a tiny model of every class of experts that transformers has: answers, loss and all gradients against
float64, and switching between implementations. Calls are counted, so that it is moegen that is compared."""
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("transformers", exc_type=ImportError)

import models  # noqa: E402
import moegen.transformers  # noqa: E402

# What moegen cannot express, with words of the reason: transformers' own computes it.
LEFT = {"inkling2": "gate", "inkling2_loop": "gate"}
LEFT_TO = dict.fromkeys(LEFT, "grouped_mm")
IN_F32 = tuple(LEFT)   # models that refuse float64
ALL = models.classes()


@pytest.fixture(scope="module", params=ALL, ids=[c.__name__ for _, c in ALL])
def kind(request):
    """Name, class of experts, and a model that each test sets another implementation in."""
    return *request.param, models.build(*request.param, "eager")


def test_there_are_many():
    assert len(ALL) >= 60


def test_gradients(kind, calls):
    name, experts, model = kind
    truth = models.twin(model, dtype=torch.float32 if name in IN_F32 else torch.float64)
    model.set_experts_implementation("moegen")
    ids, called = models.tokens(), models.count_calls(model, experts)
    (got, loss), (want, true_loss) = models.run(model, ids), models.run(truth, ids)
    assert called and calls == {"moegen": 0, "grouped_mm": 0, LEFT_TO.get(name, "moegen"): len(called)}
    assert models.error(got, want) < 1e-4 and models.error(loss, true_loss) < 1e-4
    loss.backward()
    true_loss.backward()
    least, of_experts = 1e-4 * max(q.grad.norm() for q in truth.parameters() if q.grad is not None), 0
    for (n, p), q in zip(model.named_parameters(), truth.parameters()):
        assert (p.grad is None) == (q.grad is None), n
        if p.grad is not None:
            assert models.error(p.grad, q.grad, least) < 1e-3, n
            of_experts += "experts" in n and "shared" not in n
    assert of_experts >= 2 * len(called)


def test_switching(kind, calls):
    _, experts, model = kind
    model.set_experts_implementation("eager")
    called = models.count_calls(model, experts)
    with torch.no_grad():
        want, _ = models.run(model, models.tokens())
        for implementation in ("moegen", "grouped_mm", "moegen", "eager"):
            before, count = sum(calls.values()), len(called)
            model.set_experts_implementation(implementation)
            got, _ = models.run(model, models.tokens())
            assert models.error(got, want) < 1e-4
            assert sum(calls.values()) - before == (len(called) - count if implementation == "moegen" else 0)


def test_generate(kind, calls):
    *_, model = kind
    if not model.can_generate():
        pytest.skip(f"{type(model).__name__} does not generate")
    model.set_experts_implementation("moegen")
    got = model.generate(models.tokens(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert sum(calls.values()) > 0 and got.shape == (2, 13)
    model.set_experts_implementation("eager")
    assert torch.equal(got, model.generate(models.tokens(), max_new_tokens=4, min_new_tokens=4, do_sample=False))


@pytest.mark.parametrize("name", [n for n in LEFT if n in dict(ALL)])
def test_reasons(name):
    experts = dict(ALL)[name]
    module = next(m for m in models.build(name, experts, "moegen").modules() if type(m) is experts)
    assert LEFT[name] in moegen.transformers.options_of(module)
