# SPDX-License-Identifier: Apache-2.0
"""peer_libxsmm.py - LIBXSMM's batch-reduce kernels, forward, see libxsmm.c. It packs the weights before anything is timed."""
from native import Native
from worker import serve


class Libxsmm(Native):
    name, install, products = "libxsmm", "apt-get install libxsmm-dev", ("forward",)
    source, libraries = "libxsmm.c", ("-lxsmm", "-lxsmmnoblas", "-ldl", "-lpthread", "-lm")


if __name__ == "__main__":
    serve(Libxsmm)
