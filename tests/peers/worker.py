# SPDX-License-Identifier: Apache-2.0
"""worker.py - a peer in a process of its own: requests are lines of JSON on stdin, each answered by a line on stdout.

A peer's file calls serve() with a class:

    class Peer:
        name = "torch"
        install = "pip install torch"             # what would provide it
        products = ("forward", "backward")        # what it can do
        def __init__(self, problem, threads): ... # may raise Missing(reason)
        version = "..."
        def run(self, what): ...                  # once; what to time
        def rows(self, name, rows): ...           # of the answer `name` of the last run: [len(rows)][H]

A library that may not be there is imported by need(module, how to install it).

Requests: {"do": "check", "what": "forward"} -> {"errors": {answer: relative error}}; {"do": "time", "what": ..., "seconds": s}
-> {"samples": [seconds of a run, ...]}; {"do": "quit"}. Any failure is answered by {"failed": reason}.
"""
import ctypes
import importlib
import json
import os
import signal
import sys
import time

from problem import Problem, error, reference

LEAST = 2   # runs that are timed at once
PR_SET_PDEATHSIG = 1   # prctl's


class Missing(Exception):
    """This machine has not what the peer needs."""


replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)   # what libraries print goes to stderr


def reply(message):
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def need(module, install):
    """Imports a module that a peer cannot do without, or says so and ends."""
    try:
        return importlib.import_module(module)
    except ImportError as why:
        reply({"missing": str(why), "install": install})
        sys.exit(0)


def time_runs(peer, what, seconds):
    peer.run(what)
    samples, end = [], time.perf_counter() + seconds
    while len(samples) < LEAST or time.perf_counter() < end:
        start = time.perf_counter()
        peer.run(what)
        samples.append(time.perf_counter() - start)
    return samples


def answer(peer, problem, request):
    what = request.get("what")
    if request["do"] == "check":
        peer.run(what)
        want = reference(problem, what)
        return {"errors": {name: error(peer.rows(name, rows), values) for name, (rows, values) in want.items()}}
    if request["do"] == "time":
        return {"samples": time_runs(peer, what, request["seconds"])}
    raise ValueError(f"no request {request['do']!r}")


def serve(kind):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)   # it may be stopped when its parent ends, and would stay
    try:
        problem = Problem(sys.argv[1])
        peer = kind(problem, int(sys.argv[2]))
    except Missing as why:
        reply({"missing": str(why), "install": kind.install})
        return
    except Exception as why:   # whatever a library may raise
        reply({"failed": f"{type(why).__name__}: {why}"})
        return
    reply({"ready": kind.name, "version": peer.version, "products": list(kind.products)})
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "quit":
            return
        try:
            reply(answer(peer, problem, request))
        except Exception as why:
            reply({"failed": f"{type(why).__name__}: {why}"})
