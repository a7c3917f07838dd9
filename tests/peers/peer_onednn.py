# SPDX-License-Identifier: Apache-2.0
"""peer_onednn.py - oneDNN's matmul, expert by expert, forward and backward, see onednn.cpp. Of the forward pass it packs the weights
before anything is timed."""
from native import Native
from worker import serve


class Onednn(Native):
    name, install, products = "onednn", "apt-get install libdnnl-dev", ("forward", "backward")
    source, libraries = "onednn.cpp", ("-ldnnl",)


if __name__ == "__main__":
    serve(Onednn)
