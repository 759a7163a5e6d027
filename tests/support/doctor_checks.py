"""Checks for `probe` to run in a process of its own; no test lives here."""

from __future__ import annotations

import os
import signal
import sys
import time

from amp.integration.doctor.findings import OK, Finding


def well():
    print("noise on stdout")
    yield Finding("well", OK, f"in process {os.getpid()}", facts={"id": os.getpid()})


def ends():
    print("terminate called after throwing 'dnnl::error'", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)
    yield


def hangs():
    time.sleep(600)
    yield


def raises():
    raise LookupError("no driver")
    yield


def enabled():
    yield Finding("enabled", OK, os.environ.get("AMP_ENABLE", "unset"))
