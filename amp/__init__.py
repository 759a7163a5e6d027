"""Automatic mixed precision for TensorFlow graphs: the public names, by list.

Importing has no effect and imports nothing of TensorFlow; names load when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp import lazy_names

if TYPE_CHECKING:
    from amp import callbacks as callbacks
    from amp import loss_scaling as loss_scaling
    from amp.errors import AmpError as AmpError
    from amp.graph_rewrite.report import Report as Report
    from amp.graph_rewrite.rewrite import Rewrite as Rewrite
    from amp.integration.api import disable as disable
    from amp.integration.api import enable as enable
    from amp.integration.api import keep_float32 as keep_float32
    from amp.integration.api import (
        mixed_precision_scope as mixed_precision_scope,
    )
    from amp.integration.comparing.compare import compare as compare
    from amp.integration.files.given_functions import explain as explain
    from amp.integration.files.given_functions import twin as twin
    from amp.integration.files.graphs import rewrite as rewrite
    from amp.integration.files.tune_function import tune as tune
    from amp.integration.measuring.hardware import device as device
    from amp.integration.measuring.hardware import resolve as resolve
    from amp.integration.reports import reports as reports
    from amp.policy import Policy as Policy

_HOME = {
    "AmpError": "amp.errors",
    "Policy": "amp.policy",
    "Report": "amp.graph_rewrite.report",
    "Rewrite": "amp.graph_rewrite.rewrite",
    "callbacks": "amp.callbacks",
    "compare": "amp.integration.comparing.compare",
    "device": "amp.integration.measuring.hardware",
    "disable": "amp.integration.api",
    "enable": "amp.integration.api",
    "explain": "amp.integration.files.given_functions",
    "keep_float32": "amp.integration.api",
    "loss_scaling": "amp.loss_scaling",
    "mixed_precision_scope": "amp.integration.api",
    "reports": "amp.integration.reports",
    "resolve": "amp.integration.measuring.hardware",
    "rewrite": "amp.integration.files.graphs",
    "tune": "amp.integration.files.tune_function",
    "twin": "amp.integration.files.given_functions",
}
__all__ = sorted(_HOME)
__getattr__ = lazy_names.getter(__name__, _HOME)


def __dir__() -> list[str]:
    return list(__all__)
