"""`amp doctor`: what this machine can do, finding by finding."""

from __future__ import annotations

import pytest
import tensorflow as tf

from amp import cli
from amp.integration import active
from amp.integration.measuring import hardware
from amp.integration.process import PROCESS
from amp.policy import Policy

pytestmark = pytest.mark.kernels


def test_doctor_says_what_this_machine_can_do(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AMP_DTYPE", "float16")
    monkeypatch.setenv("AMP_DTPYE", "float16")
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {line[:12].rstrip(): line[13:] for line in lines}
    assert told["tensorflow"] == tf.__version__
    assert told["device"] == hardware.device().describe()
    assert told["operations"] == "0 of past jobs measured"
    assert told["figures"] == hardware.device().source
    assert told["auto"] == hardware.resolve(Policy()).reason
    assert told["so"].startswith("float16 on")
    assert told["unknown"] == "AMP_DTPYE is no variable of amp"
    assert told["hooks"] == "all present"
    assert "tf_amp.pth" in told["AMP_ENABLE"]
    assert active.active() is None


def test_doctor_tells_of_a_missing_hook(capsys, monkeypatch):
    monkeypatch.setattr(PROCESS, "installed", False)
    monkeypatch.setattr(tf, "__version__", "2.9.1")
    assert cli.main(["doctor"]) == 1
    assert "TensorFlow 2.9.1 is too old" in capsys.readouterr().out
