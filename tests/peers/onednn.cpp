/* SPDX-License-Identifier: Apache-2.0 */
/*
 * onednn.cpp - an expert's products by oneDNN's matmul: bf16 or f32 with sums in f32. Primitives
 * are made before anything is timed; of the forward pass so are the weights, in the layout that
 * each primitive likes best. The backward pass, whose weights change with each step, takes them as
 * they lie.
 */
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "layer.h"

namespace
{

using dnnl::memory;
using type = memory::data_type;
using args = std::unordered_map<int, memory>;

/* Rows of a matrix and their distance; turned: columns' instead. */
memory::desc plain(type t, int64_t rows, int64_t columns, int64_t pitch, bool turned = false)
{
    return memory::desc({rows, columns}, t,
                        turned ? memory::dims{1, pitch} : memory::dims{pitch, 1});
}

memory::desc any(type t, int64_t rows, int64_t columns)
{
    return memory::desc({rows, columns}, t, memory::format_tag::any);
}

dnnl::matmul::primitive_desc product_of(const dnnl::engine &engine, const memory::desc &a,
                                        const memory::desc &b, const memory::desc &c,
                                        const dnnl::primitive_attr &attr = dnnl::primitive_attr())
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
    return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine);
#endif
}

/* A product of matrices whose shapes are fixed. */
struct product {
    dnnl::matmul::primitive_desc about;
    dnnl::matmul primitive;
};

struct library {
    const layer *l;
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    type t;
    int64_t most = 0; /* pairs of an expert */
    std::map<std::string, std::unique_ptr<product>> made;
    std::vector<memory> gate, up, down; /* packed, of each expert */
    std::vector<char> x, dy, active, dh;
    std::vector<float> kept_hidden, kept_result, hidden, wide,
        sums; /* kept: of all pairs, for the way back */
    std::vector<char> kept_active;

    explicit library(const layer *of);
    const product &make(const char *name, int64_t count, const memory::desc &a,
                        const memory::desc &b, const memory::desc &c,
                        const dnnl::primitive_attr &attr = dnnl::primitive_attr());
    void run(const product &p, const void *a, const memory &b, void *c,
             const memory *beside = nullptr);
    void run(const product &p, const void *a, const void *b, void *c);
    memory pack(const product &p, const void *from, int64_t rows, int64_t columns);
    const product &up_of(int64_t count), &gate_of(int64_t count), &down_of(int64_t count);
    void forward();
    void save();
    void backward();
    void activation_back(int64_t first, int64_t count);

    int64_t count(int64_t e) const
    {
        return l->first[e + 1] - l->first[e];
    }

    const char *at(const void *from, int64_t i) const
    {
        return static_cast<const char *>(from) + size_t(i) * element(l);
    }

    char *at(void *from, int64_t i) const
    {
        return static_cast<char *>(from) + size_t(i) * element(l);
    }
};

const product &library::make(const char *name, int64_t count, const memory::desc &a,
                             const memory::desc &b, const memory::desc &c,
                             const dnnl::primitive_attr &attr)
{
    auto &p = made[name + std::to_string(count)];
    if (!p) {
        auto about = product_of(engine, a, b, c, attr);
        p = std::make_unique<product>(product{about, dnnl::matmul(about)});
    }
    return *p;
}

void library::run(const product &p, const void *a, const memory &b, void *c, const memory *beside)
{
    args of = {{DNNL_ARG_SRC, memory(p.about.src_desc(), engine, const_cast<void *>(a))},
               {DNNL_ARG_WEIGHTS, b},
               {DNNL_ARG_DST, memory(p.about.dst_desc(), engine, c)}};
    if (beside)
        of.insert({DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1, *beside});
    p.primitive.execute(stream, of);
    stream.wait();
}

void library::run(const product &p, const void *a, const void *b, void *c)
{
    run(p, a, memory(p.about.weights_desc(), engine, const_cast<void *>(b)), c);
}

/* [columns][rows] weights as the primitive wants them, of [rows][columns]. */
memory library::pack(const product &p, const void *from, int64_t rows, int64_t columns)
{
    memory to(p.about.weights_desc(), engine),
        as(plain(t, rows, columns, rows, true), engine, const_cast<void *>(from));
    dnnl::reorder(as, to).execute(stream, as, to);
    stream.wait();
    return to;
}

const product &library::up_of(int64_t count)
{
    return make("up", count, plain(t, count, l->H, l->H), any(t, l->H, l->I),
                plain(type::f32, count, l->I, l->I));
}

/* silu(tokens * gate) * up, on the way out of the product. */
const product &library::gate_of(int64_t count)
{
    dnnl::post_ops after;
#if DNNL_VERSION_MAJOR >= 3
    after.append_eltwise(dnnl::algorithm::eltwise_swish, 1, 0);
#else
    after.append_eltwise(1, dnnl::algorithm::eltwise_swish, 1, 0);
#endif
    after.append_binary(dnnl::algorithm::binary_mul, plain(type::f32, count, l->I, l->I));
    dnnl::primitive_attr attr;
    attr.set_post_ops(after);
    return make("gate", count, plain(t, count, l->H, l->H), any(t, l->H, l->I),
                plain(t, count, l->I, l->I), attr);
}

const product &library::down_of(int64_t count)
{
    return make("down", count, plain(t, count, l->I, l->I), any(t, l->I, l->H),
                plain(type::f32, count, l->H, l->H));
}

library::library(const layer *of)
    : l(of), t(of->is_bf16 ? type::bf16 : type::f32), gate(of->E), up(of->E), down(of->E)
{
    const int64_t H = l->H, I = l->I;
    for (int64_t e = 0; e < l->E; e++) {
        if (!count(e))
            continue;
        most = std::max(most, count(e));
        const char *own = at(l->gate_up, e * 2 * I * H);
        gate[e] = pack(gate_of(count(e)), own, H, I);
        up[e] = pack(up_of(count(e)), at(own, I * H), H, I);
        down[e] = pack(down_of(count(e)), at(l->down, e * H * I), I, H);
    }
    x.resize(l->pairs * H * element(l));
    active.resize(most * I * element(l));
    hidden.resize(most * I);
    wide.resize(most * H);
    sums.resize(l->T * H);
}

void library::forward()
{
    gather(l, l->x, x.data());
    std::fill(sums.begin(), sums.end(), 0.f);
    for (int64_t e = 0; e < l->E; e++) {
        const int64_t n = count(e), first = l->first[e];
        if (!n)
            continue;
        const char *own = at(x.data(), first * l->H);
        run(up_of(n), own, up[e], hidden.data());
        memory beside(plain(type::f32, n, l->I, l->I), engine, hidden.data());
        run(gate_of(n), own, gate[e], active.data(), &beside);
        run(down_of(n), active.data(), down[e], wide.data());
        add_rows(l, first, first + n, wide.data(), l->weight, sums.data());
    }
    round_rows(l, sums.data(), l->output);
}

/* What a forward pass in training leaves. */
void library::save()
{
    const int64_t H = l->H, I = l->I;
    dy.resize(l->pairs * H * element(l));
    dh.resize(most * 2 * I * element(l));
    kept_hidden.resize(l->pairs * 2 * I);
    kept_active.resize(l->pairs * I * element(l));
    kept_result.resize(l->pairs * H);
    hidden.resize(most * I);
    gather(l, l->x, x.data());
    for (int64_t e = 0; e < l->E; e++) {
        const int64_t n = count(e), first = l->first[e];
        if (!n)
            continue;
        auto &both = make("both", n, plain(t, n, H, H), plain(t, H, 2 * I, H, true),
                          plain(type::f32, n, 2 * I, 2 * I));
        run(both, at(x.data(), first * H), at(l->gate_up, e * 2 * I * H),
            &kept_hidden[first * 2 * I]);
        for (int64_t i = first; i < first + n; i++)
            for (int64_t c = 0; c < I; c++) {
                const float g = kept_hidden[i * 2 * I + c], u = kept_hidden[i * 2 * I + I + c];
                put(l, kept_active.data(), i * I + c, g * sigmoid(g) * u);
            }
        run(down_of(n), at(kept_active.data(), first * I), down[e], &kept_result[first * H]);
    }
}

/* Gradients of an expert's gate and up, from those of their product in `hidden`. */
void library::activation_back(int64_t first, int64_t n)
{
    const int64_t I = l->I;
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        const float *gate = &kept_hidden[(first + i) * 2 * I], *up = gate + I, *d = &hidden[i * I];
        for (int64_t c = 0; c < I; c++) {
            const float s = sigmoid(gate[c]);
            put(l, dh.data(), i * 2 * I + c, d[c] * up[c] * (s * (1 + gate[c] * (1 - s))));
            put(l, dh.data(), i * 2 * I + I + c, d[c] * gate[c] * s);
        }
    }
}

/* Rows of dy, scaled; and the gradient of what they are scaled by. */
void scale_rows(const layer *l, const float *result, void *dy)
{
#pragma omp parallel for
    for (int64_t i = 0; i < l->pairs; i++) {
        float sum = 0;
        for (int64_t n = 0; n < l->H; n++) {
            const float d = number(l, l->dy, l->token[i] * l->H + n);
            sum += d * result[i * l->H + n];
            put(l, dy, i * l->H + n, d * l->weight[i]);
        }
        l->weight_grad[i] = sum;
    }
}

void library::backward()
{
    const int64_t H = l->H, I = l->I;
    if (kept_result.empty())
        save();
    scale_rows(l, kept_result.data(), dy.data());
    std::fill(sums.begin(), sums.end(), 0.f);
    for (int64_t e = 0; e < l->E; e++) {
        const int64_t n = count(e), first = l->first[e];
        char *gate_up_grad = at(l->gate_up_grad, e * 2 * I * H),
             *down_grad = at(l->down_grad, e * H * I);
        if (!n)
            continue;
        const char *own_x = at(x.data(), first * H), *own_dy = at(dy.data(), first * H);
        run(make("down_grad", n, plain(t, H, n, H, true), plain(t, n, I, I), plain(t, H, I, I)),
            own_dy, at(kept_active.data(), first * I), down_grad);
        run(make("dp", n, plain(t, n, H, H), plain(t, H, I, I), plain(type::f32, n, I, I)), own_dy,
            at(l->down, e * H * I), hidden.data());
        activation_back(first, n);
        run(make("gate_up_grad", n, plain(t, 2 * I, n, 2 * I, true), plain(t, n, H, H),
                 plain(t, 2 * I, H, H)),
            dh.data(), own_x, gate_up_grad);
        run(make("dx", n, plain(t, n, 2 * I, 2 * I), plain(t, 2 * I, H, H),
                 plain(type::f32, n, H, H)),
            dh.data(), at(l->gate_up, e * 2 * I * H), wide.data());
        add_rows(l, first, first + n, wide.data(), nullptr, sums.data());
    }
    round_rows(l, sums.data(), l->x_grad);
}

std::unique_ptr<library> own;

/* NULL, or what was thrown. */
template <typename work> const char *caught(work of)
{
    static std::string wrong;
    try {
        of();
        return nullptr;
    } catch (const std::exception &why) {
        wrong = why.what();
        return wrong.c_str();
    }
}

} // namespace

const char *peer_version(void)
{
    const dnnl_version_t *v = dnnl_version();
    static const std::string text =
        std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
    return text.c_str();
}

const char *peer_open(const layer *l)
{
    return caught([=] { own = std::make_unique<library>(l); });
}

const char *peer_run(int backward)
{
    return caught([=] { backward ? own->backward() : own->forward(); });
}
