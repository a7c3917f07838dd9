/* SPDX-License-Identifier: Apache-2.0 */
/* fill_moe_backward.c - inputs for moe_backward: those of moe_forward, what it leaves behind, and
 * the gradient of its output. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "moe.h"

static const double TOO_MUCH = 4e9; /* flop of a forward pass that takes seconds in float64 */

moegen_rt_status rt_moe_backward_read(const moegen_rt_problem *p, struct rt_moe *m, bool *recompute,
                                      moegen_rt_error *err)
{
    moegen_rt_status status = rt_moe_read(p, m, err);
    *recompute = strcmp(moegen_rt_problem_text(p, "checkpoint", "saved"), "recompute") == 0;
    if (status != MOEGEN_RT_OK)
        return status;
    const struct rt_format *codes = rt_weights_format(p);
    if (codes && !m->frozen)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED,
                       "weights in %s have no gradients: weight_grads must be none", codes->name);
    if (m->post_norm && *recompute)
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED,
                       "moe_backward has no float64 reference that recomputes in front of a norm");
    bool quantised = strcmp(moegen_rt_problem_text(p, "quantize", "none"), "none") != 0;
    if (quantised && (codes || m->norm))
        return rt_fail(err, MOEGEN_RT_UNSUPPORTED,
                       "moe_backward has no float64 reference with quantised operands beside %s",
                       m->norm ? "a normalisation" : "codes of weights");
    return MOEGEN_RT_OK;
}

/* A checkpoint in the io dtype from the forward pass's float64 output, which is dropped. */
static moegen_rt_status save(moegen_rt_problem *p, moegen_rt_problem *out, const char *from,
                             const char *to, moegen_rt_dtype io, moegen_rt_error *err)
{
    moegen_rt_tensor *exact = moegen_rt_problem_tensor(out, from), *t;
    moegen_rt_status status = moegen_rt_problem_add(p, to, io, exact->rank, exact->shape, &t, err);
    if (status == MOEGEN_RT_OK)
        moegen_rt_encode(io, exact->data, (size_t)moegen_rt_tensor_count(exact), t->data);
    return status;
}

/* Checkpoints that the forward pass would leave behind. */
static moegen_rt_status true_checkpoints(moegen_rt_problem *p, const struct rt_moe *m,
                                         moegen_rt_dtype io, moegen_rt_error *err)
{
    const char *said = moegen_rt_problem_text(p, "checkpoint", NULL);
    char *before = said ? strdup(said) : NULL;
    moegen_rt_problem *out = moegen_rt_problem_create();
    moegen_rt_want want = {.padding_is_zero = 1};
    moegen_rt_status status = MOEGEN_RT_OK;
    if (!out || (said && !before))
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    if (status == MOEGEN_RT_OK)
        status = moegen_rt_problem_set(p, "checkpoint", "save");
    if (status == MOEGEN_RT_OK)
        status = rt_compute_moe_forward(p, &want, out, err);
    if (status == MOEGEN_RT_OK)
        status = save(p, out, "gate_up_activations_T", "gate_up_proj_act_checkpoint_T", io, err);
    if (status == MOEGEN_RT_OK && !m->post_intermediate)
        status = save(p, out, "down_activations", "down_proj_act_checkpoint", io, err);
    moegen_rt_status back = moegen_rt_problem_set(p, "checkpoint", before);
    moegen_rt_problem_destroy(out);
    free(before);
    return status != MOEGEN_RT_OK ? status : back;
}

/* Rows of tokens, the last extent of scales if they are codes. */
static int64_t token_rows(const moegen_rt_problem *p)
{
    const moegen_rt_tensor *scales = moegen_rt_problem_tensor(p, "hidden_states_scales");
    return scales ? scales->shape[1] : moegen_rt_problem_tensor(p, "hidden_states")->shape[0];
}

/* Is there no token in that slot? */
static bool is_padding(const moegen_rt_problem *p, const struct rt_moe *m, int64_t slot)
{
    int64_t T = token_rows(p) - 1;
    int64_t id = rt_index_at(moegen_rt_problem_tensor(p, "token_position_to_id"), slot);
    return id == (m->skip_token ? -1 : T);
}

/* Random values of the same size where the forward pass would take long: clamped, with the offset,
 * and zero in padding slots. */
static moegen_rt_status random_checkpoints(moegen_rt_problem *p, const struct rt_moe *m,
                                           moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err)
{
    moegen_rt_tensor *t, *d = NULL;
    int64_t B = m->B, N = moegen_rt_tensor_count(moegen_rt_problem_tensor(p, "block_to_expert"));
    int64_t gate_up[] = {N, m->parts, m->I, B}, down[] = {N, B, m->H};
    size_t width = moegen_rt_dtype_of(io)->bytes;
    moegen_rt_status status =
        rt_add_normal(p, "gate_up_proj_act_checkpoint_T", io, 4, gate_up, seed, 1, err);
    if (status == MOEGEN_RT_OK && !m->post_intermediate)
        status = rt_add_normal(p, "down_proj_act_checkpoint", io, 3, down, seed, 0.5, err);
    if (status != MOEGEN_RT_OK)
        return status;
    t = moegen_rt_problem_tensor(p, "gate_up_proj_act_checkpoint_T");
    d = moegen_rt_problem_tensor(p, "down_proj_act_checkpoint");
    double *v = malloc((size_t)B * sizeof *v);
    uint8_t *padding = malloc((size_t)B);
    if (!v || !padding)
        status = rt_fail(err, MOEGEN_RT_NO_MEMORY, "out of memory");
    for (int64_t row = 0; status == MOEGEN_RT_OK && row < N * m->parts * m->I; row++) {
        int64_t b = row / (m->parts * m->I), part = row / m->I % m->parts;
        bool up = part == m->parts - 1;
        struct rt_limits to = up ? m->up : m->gate;
        for (int64_t i = 0; row % (m->parts * m->I) == 0 && i < B; i++) { /* a new block? */
            padding[i] = is_padding(p, m, b * B + i);
            if (padding[i] && !m->post_intermediate)
                memset((char *)d->data + (size_t)((b * B + i) * m->H) * width, 0,
                       (size_t)m->H * width);
        }
        rt_elements(t, row * B, B, v);
        for (int64_t i = 0; i < B; i++)
            v[i] = padding[i]
                       ? 0
                       : rt_with_offset(fmax(to.lo, fmin(to.hi, v[i])), up ? m->up_offset : 0);
        moegen_rt_encode(io, v, (size_t)B, (char *)t->data + (size_t)(row * B) * width);
    }
    free(v);
    free(padding);
    return status;
}

moegen_rt_status rt_moe_checkpoints(moegen_rt_problem *p, const struct rt_moe *m,
                                    moegen_rt_dtype io, uint64_t seed, moegen_rt_error *err)
{
    int64_t rows = token_rows(p);
    double flops = 6.0 * (double)(rows * m->k) * (double)m->H * (double)m->I;
    return flops < TOO_MUCH ? true_checkpoints(p, m, io, err)
                            : random_checkpoints(p, m, io, seed, err);
}

static moegen_rt_status fill_kind(moegen_rt_problem *p, const struct rt_moe *m, enum rt_kind kind,
                                  uint64_t seed, moegen_rt_error *err)
{
    struct rt_weights w;
    moegen_rt_status status = rt_weights_lay(p, m, kind, &w, err);
    if (status == MOEGEN_RT_OK)
        status = rt_weights_fill_gradient(p, &w, seed, err);
    rt_weights_free(&w);
    return status;
}

moegen_rt_status rt_moe_fill_gradients(moegen_rt_problem *p, const struct rt_moe *m, uint64_t seed,
                                       moegen_rt_error *err)
{
    int64_t down_b[] = {m->E, m->H}, norm[] = {m->E, m->I};
    if (m->frozen)
        return MOEGEN_RT_OK;
    moegen_rt_status status = fill_kind(p, m, RT_GATE_UP, seed, err);
    if (status == MOEGEN_RT_OK)
        status = fill_kind(p, m, RT_DOWN, seed, err);
    if (status == MOEGEN_RT_OK && m->bias_gate_up)
        status = fill_kind(p, m, RT_GATE_UP_BIAS, seed, err);
    if (status == MOEGEN_RT_OK && m->bias_down)
        status = rt_fill_gradient(p, "down_proj_bias_grad", 2, down_b, seed, err);
    if (status == MOEGEN_RT_OK && m->norm)
        status = rt_fill_gradient(p, "norm_weight_grad", 2, norm, seed, err);
    if (status == MOEGEN_RT_OK && m->norm)
        status = rt_fill_gradient(p, "norm_bias_grad", 2, norm, seed, err);
    if (status == MOEGEN_RT_OK && m->post_norm)
        status = rt_fill_gradient(p, "post_norm_weight_grad", 1, &m->H, seed, err);
    return status;
}

moegen_rt_status rt_fill_moe_backward(moegen_rt_problem *p, const moegen_rt_fill *how,
                                      moegen_rt_error *err)
{
    struct rt_moe m;
    bool recompute;
    moegen_rt_dtype io;
    moegen_rt_status status = rt_moe_backward_read(p, &m, &recompute, err);
    if (status == MOEGEN_RT_OK)
        status = rt_dtype(p, "dtype", MOEGEN_RT_F32, &io, err);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_fill(p, how, err);
    if (status != MOEGEN_RT_OK)
        return status;
    status = rt_tokens_fill(p, "output_hidden_states_grad", token_rows(p), m.H, io, how->seed, err);
    if (status == MOEGEN_RT_OK && !recompute)
        status = rt_moe_checkpoints(p, &m, io, how->seed, err);
    if (status == MOEGEN_RT_OK)
        status = rt_moe_fill_gradients(p, &m, how->seed, err);
    return status;
}
