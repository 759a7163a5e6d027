"""What TensorFlow finds here, and what keeps it from 16-bit arithmetic."""

from __future__ import annotations

import pytest
import tensorflow as tf

from amp.graph_rewrite.cost import shipped_devices
from amp.integration.doctor import machine
from amp.integration.doctor.findings import NOTE, OK, WRONG
from amp.integration.measuring import hardware
from amp.policy import Policy

BF16 = frozenset({"avx512f", "avx512_bf16"})
AMX = BF16 | {"amx_bf16"}
OLD = frozenset({"avx2"})


def only(findings):
    (finding,) = findings
    return finding


@pytest.fixture
def onednn(monkeypatch):
    """Finds what `onednn` says of a CPU with these flags under these variables."""

    def found(flags, **environment):
        for name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
        return only(machine.onednn())

    return found


def test_a_tensorflow_that_is_too_old_is_wrong(monkeypatch):
    assert only(machine.tensorflow()).status == OK
    monkeypatch.setattr(tf, "__version__", "2.9.1")
    finding = only(machine.tensorflow())
    assert finding.status == WRONG
    assert "too old" in finding.text


@pytest.mark.parametrize("flags", [BF16, AMX, OLD, frozenset()])
def test_onednn_without_a_limit_is_well(onednn, flags):
    finding = onednn(flags)
    assert finding.status == OK
    assert finding.text == "on, not limited"
    assert onednn(flags, ONEDNN_MAX_CPU_ISA="default").status == OK


@pytest.mark.parametrize(
    ("flags", "limit", "status", "told"),
    [
        (
            BF16,
            "AVX512_CORE",
            WRONG,
            "hides AVX512-BF16, which this CPU has; no 16-bit",
        ),
        (
            AMX,
            "AVX512_CORE_BF16",
            NOTE,
            "hides AMX-BF16, which this CPU has; AVX512-BF",
        ),
        (BF16, "AVX2", WRONG, "a product in bfloat16 ends the process"),
        (OLD | {"avx512f"}, "avx2", WRONG, "a product in bfloat16 ends the process"),
        (OLD, "AVX2", OK, "on, up to AVX2"),
        (BF16, "AVX512_CORE_BF16", OK, "on, up to AVX512_CORE_BF16"),
        (BF16, "AVX512BF16", WRONG, "no instruction set that oneDNN knows"),
        (AMX, "AVX10_2_512", WRONG, "no instruction set that oneDNN knows"),
        (AMX, "AVX10_1_512", NOTE, "hides AMX-BF16, which this CPU has; AVX512-BF"),
        (AMX, "AVX10_1_512_AMX", OK, "on, up to AVX10_1_512_AMX"),
    ],
)
def test_a_limit_is_wrong_where_it_hides_what_the_cpu_has(
    onednn, flags, limit, status, told
):
    finding = onednn(flags, ONEDNN_MAX_CPU_ISA=limit)
    assert finding.status == status
    assert told in finding.text
    assert bool(finding.remedy) == (status != OK)
    assert finding.facts["limit"] == limit.upper()


@pytest.mark.parametrize("limit", ["AVX512_CORE", "AVX2", "AVX512CORE"])
def test_the_limit_is_told_by_the_variable_that_was_set(onednn, limit):
    finding = onednn(BF16, DNNL_MAX_CPU_ISA=limit)
    assert finding.status == WRONG
    assert f"DNNL_MAX_CPU_ISA={limit}" in finding.text
    assert "ONEDNN" not in finding.text + finding.remedy
    assert finding.remedy in ("unset DNNL_MAX_CPU_ISA", "did you mean AVX512_CORE?")


def test_a_limit_that_is_misspelt_is_answered_with_one_that_is_not(onednn):
    finding = onednn(BF16, ONEDNN_MAX_CPU_ISA="AVX512CORE")
    assert finding.remedy == "did you mean AVX512_CORE?"


@pytest.mark.parametrize("value", ["0", "False"])
@pytest.mark.parametrize(("flags", "status"), [(BF16, WRONG), (OLD, OK)])
def test_onednn_that_is_off_is_wrong_where_something_is_lost(
    onednn, flags, status, value
):
    finding = onednn(flags, TF_ENABLE_ONEDNN_OPTS=value)
    assert finding.status == status
    assert finding.text.startswith("off")


def test_each_device_says_which_of_its_types_are_real():
    first, *_ = machine.devices()
    native = hardware.device("CPU:0").native
    assert first.facts["place"] == "CPU:0"
    for dtype in ("bfloat16", "float16"):
        real = dtype in native
        assert first.facts[dtype] == ("real" if real else "emulated")
        words = "real arithmetic" if real else "emulated in float32"
        assert f"{dtype}: {words}" in first.text


def test_a_gpu_is_told_with_its_compute_capability(monkeypatch):
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    details = {"device_name": "NVIDIA H100", "compute_capability": (9, 0)}
    visible = tf.config.get_visible_devices

    def devices(kind=None):
        return [gpu] if kind == "GPU" else visible(kind)

    for name in ("get_visible_devices", "list_physical_devices"):
        monkeypatch.setattr(tf.config, name, devices)
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "get_device_details", lambda gpu: details)
    monkeypatch.setattr(hardware, "device", lambda place="": shipped_devices.H100)
    _, finding = machine.devices()
    assert finding.text == (
        "GPU:0: NVIDIA H100, compute capability 9.0; bfloat16: real arithmetic; "
        "float16: real arithmetic"
    )
    assert finding.facts["compute_capability"] == "9.0"


@pytest.mark.parametrize(
    ("hidden", "cuda", "status", "told"),
    [
        ("-1", True, NOTE, "CUDA_VISIBLE_DEVICES='-1' hides it"),
        (None, False, WRONG, "built without CUDA"),
        (None, True, WRONG, "TensorFlow sees no GPU"),
    ],
)
def test_a_gpu_that_tensorflow_does_not_see_is_told_of(
    hidden, cuda, status, told, tmp_path, monkeypatch
):
    (tmp_path / "version").touch()
    monkeypatch.setattr(machine, "_NVIDIA", (tmp_path / "version",))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    finding = only(machine.hidden_gpu())
    assert finding.status == status
    assert told in finding.text
    assert ("tensorflow[and-cuda]" in finding.remedy) == (status == WRONG)


@pytest.mark.parametrize("there", [True, False])
def test_a_tensorflow_for_cpus_goes_before_one_with_cuda_comes(there, monkeypatch):
    found = [object()] * there
    monkeypatch.setattr(
        machine.importlib.metadata, "distributions", lambda name: iter(found)
    )
    assert ("uninstall tensorflow-cpu, then pip" in machine._with_cuda()) == there


def test_without_a_driver_no_gpu_is_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_NVIDIA", (tmp_path / "version",))
    assert not list(machine.hidden_gpu())


def test_precision_is_what_the_policy_of_the_environment_comes_to(monkeypatch):
    monkeypatch.setattr(hardware, "device", lambda place="": shipped_devices.CPU_AMX)
    finding = only(machine.precision())
    assert finding.status == OK
    assert finding.text == hardware.resolve(Policy()).reason
    assert finding.facts == {"auto": "bfloat16", "dtype": "bfloat16"}
    monkeypatch.setenv("AMP_DTYPE", "float16")
    finding = only(machine.precision())
    assert finding.status == NOTE
    assert "this device has no such arithmetic" in finding.text
    assert finding.facts == {"auto": "bfloat16", "dtype": "float16"}
    monkeypatch.setenv("AMP_DTYPE", "flaot16")
    assert only(machine.precision()).status == OK


def test_a_device_without_16_bits_is_no_fault(monkeypatch):
    monkeypatch.setattr(hardware, "device", lambda place="": shipped_devices.CPU_PLAIN)
    finding = only(machine.precision())
    assert finding.status == NOTE
    assert "mixed precision is off" in finding.text


def test_xla_compiles():
    assert only(machine.xla()).status == OK


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (tf.errors.InternalError(None, None, "no libdevice\nmore"), "no libdevice"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_why_xla_does_not_compile_is_told(monkeypatch, error, said):
    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(tf, "function", broken)
    finding = only(machine.xla())
    assert finding.status == WRONG
    assert finding.text == f"XLA cannot compile: {said}"
