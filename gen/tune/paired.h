/* SPDX-License-Identifier: Apache-2.0 */
/* paired.h - which of two is faster, told from pairs of measurements: pure arithmetic, the same
 * answer for the same numbers. */
#ifndef MOEGEN_PAIRED_H
#define MOEGEN_PAIRED_H

#include <stdbool.h>

/* Fewer pairs tell nothing; more than the most are not looked at. */
enum { PAIRED_LEAST = 6, PAIRED_MOST = 1024 };

enum verdict { VERDICT_NOISY, VERDICT_SAME, VERDICT_FASTER, VERDICT_SLOWER };

struct paired {
    int pairs;
    double ratio;         /* median: speed of B over that of A; NAN without pairs */
    double low, high;     /* its 95 % interval, by bootstrap; NAN of less than two pairs */
    enum verdict verdict; /* of B */
    int more;             /* noisy: about so many pairs more would tell; else 0 */
};

/*
 * log_ratio: of each pair log(seconds of A / seconds of B), finite, positive where B was faster.
 * margin > 0: what counts as a difference, 0.02 for 2 %.
 *
 * Faster or slower: the ratio is beyond the margin, and 1 outside of the interval made wider:
 * twice, at 10 pairs 2.8 times, since who looks after every few pairs looks often, and would be
 * wrong too often. Same: the ratio is within the margin, and all of the interval within
 * twice the margin.
 * Noisy: neither can be said.
 * Where each of two pairs or more says four times the speed, it is not asked for more.
 *
 * Pairs are taken to be alike: let the order alternate (A B, B A), and judge an even number, so
 * that a machine that gets slower and slower favours neither.
 */
struct paired paired_judge(const double *log_ratio, int pairs, double margin);
/* Would it be clear within so many seconds that B is faster, if pairs go on as they did, of which
 * those at hand took `spent`? Of less than the least number of pairs: would there be so many? */
bool paired_promises(const struct paired *p, double spent, double until);
const char *verdict_name(enum verdict v);

#endif
