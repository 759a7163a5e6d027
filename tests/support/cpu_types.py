"""Lets this process take its CPU for one with, or without, 16-bit arithmetic.

For `--sixteen-bit`, before the first question is asked. The kernels stay what they are:
those of 16-bit types give the same numbers without such arithmetic, only slower.
"""

from __future__ import annotations

import os
import pathlib
import re

TYPES = ("found", "hidden", "shown")
_FLAGS = re.compile(r"^(flags\s*:)(.*)$", re.MULTILINE)
_SIXTEEN = re.compile(r"\b(avx512_bf16|avx512_fp16|amx_\w+)\b")


def pretend(types: str) -> None:
    """Takes the flags of 16-bit types off what the CPU says, or puts one on it."""
    from amp.integration.measuring import hardware

    said = pathlib.Path(os.environ["AMP_CACHE_DIR"], "cpuinfo")
    said.write_text(told(hardware._CPUINFO.read_text(), types))
    hardware._CPUINFO = said


def told(text: str, types: str) -> str:
    """What a CPU would say of itself with these types."""
    more = " avx512_bf16" if types == "shown" else ""
    return _FLAGS.sub(lambda m: m[1] + _SIXTEEN.sub("", m[2]) + more, text)
