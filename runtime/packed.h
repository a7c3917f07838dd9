/* SPDX-License-Identifier: Apache-2.0 */
/* packed.h - weights in the order in which products of rows read them (weights.layout = packed). */
#ifndef MOEGEN_PACKED_H
#define MOEGEN_PACKED_H

#include <stdint.h>

/* What an expert's slice of a packed tensor starts with; all of it is compared by a kernel that
 * reads the tensor. Numbers are little-endian. */
struct rt_packed_header {
    char magic[8];        /* "moegenPK" */
    char dtype[4];        /* the last letters of its name, zeros behind them */
    uint32_t version;     /* 1 */
    int64_t K, C;         /* of the matrix: contraction and rows of the products that read it */
    int64_t rows;         /* of a panel: C, and some of zeros */
    int64_t run;          /* elements of a row of a panel */
    int64_t parts, order; /* gate and up are 2; RT_PACKED_ flags */
};

/* Gate and up come in turn; products lead back: they contract what forward's have as rows. */
enum { RT_PACKED_IN_TURN = 1, RT_PACKED_BACK = 2 };

/* A matrix [K][C] in elements: header, then panels of `run` of K, [panel][rows][run]. */
struct rt_packed {
    struct rt_packed_header is;
    int64_t header;           /* elements before the panels */
    int64_t run, pitch, each; /* of a row of a panel; of a panel; of an expert's slice */
};
/* dtype: its name as specs have it; order: of flags; run < 1: it is not packed, and run of *p
 * becomes 0. */
void rt_packed_lay(struct rt_packed *p, const char *dtype, int64_t K, int64_t C, int64_t run,
                   int64_t parts, int64_t order);
/* Where element k of a row is in a slice. */
int64_t rt_packed_at(const struct rt_packed *p, int64_t row, int64_t k);
/* Writes the header at the start of a slice. */
void rt_packed_header(const struct rt_packed *p, void *slice);
/* Where matrices are that are to be packed: element k of row c of an expert's is
 * e * each + c * column + k * row elements from the start. */
struct rt_unpacked {
    const void *data;
    int64_t each, row, column;
};
/* Panels follow each other through all experts' slices. How many of them an expert has, and the
 * elements before panel i: the header of a slice goes with its first panel. */
int64_t rt_packed_panels(const struct rt_packed *p);
int64_t rt_packed_start(const struct rt_packed *p, int64_t i);
/* Writes panels first .. end - 1, and headers, to memory for these alone. bytes: of an element, 1,
 * 2 or 4. Different panels may be written at the same time. */
void rt_pack(const struct rt_packed *p, const struct rt_unpacked *from, int bytes, void *to,
             int64_t first, int64_t end);

/* Bytes j < n of so many rows, `row` bytes apart, become rows of their own, `pitch` bytes apart. */
void rt_turn(const uint8_t *from, int64_t row, int64_t rows, int64_t n, uint8_t *to, int64_t pitch);

#endif
