"""`hardware`: what the machine says of itself, and what the user let it use of that."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator

import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.cost import device, shipped_devices
from amp.integration.measuring import control_groups, hardware, stopwatch
from amp.policy import Policy

ALL = "avx2 avx512f avx512_bf16 amx_bf16 amx_tile"


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A CPU that can do everything, whatever this one can."""
    names = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS")
    for name in (*names, "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(hardware, "_gpu", lambda: None)
    monkeypatch.setattr(hardware, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(control_groups, "cpus", lambda: math.inf)
    (tmp_path / "cpuinfo").write_text(f"model name : A CPU\nflags : {ALL}\n")


@pytest.mark.parametrize(
    ("isa", "found"),
    [
        (None, shipped_devices.CPU_AMX),
        ("", shipped_devices.CPU_AMX),
        ("ALL", shipped_devices.CPU_AMX),
        ("NONSENSE", shipped_devices.CPU_AMX),
        ("AVX512_CORE_AMX", shipped_devices.CPU_AMX),
        ("AVX512_CORE_BF16", shipped_devices.CPU_AVX512_BF16),
        ("avx512_core_fp16", shipped_devices.CPU_AVX512_BF16),
        ("AVX512_CORE", shipped_devices.CPU_PLAIN),
        ("AVX512_CORE_VNNI", shipped_devices.CPU_PLAIN),
        ("AVX2", shipped_devices.CPU_PLAIN),
    ],
)
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_native_types_are_those_of_the_instruction_set_that_onednn_may_use(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    isa: str | None,
    found: device.Device,
) -> None:
    if isa is not None:
        monkeypatch.setenv(variable, isa)
    assert hardware.shipped() is found


@pytest.mark.parametrize(
    ("name", "value"),
    [("ONEDNN_MAX_CPU_ISA", "AVX512_CORE"), ("TF_ENABLE_ONEDNN_OPTS", "0")],
)
def test_what_onednn_may_not_use_is_named_where_mixed_precision_is_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(hardware, "device", lambda: hardware.shipped())
    assert "amp doctor" not in hardware.resolve().reason
    monkeypatch.setenv(name, value)
    said = "; the CPU has AMX-BF16, AVX512-BF16, see `amp doctor`"
    assert hardware.resolve().reason.endswith(said)


@pytest.mark.parametrize("value", ["0", "false", "False"])
def test_without_onednn_there_are_none(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", value)
    assert hardware.shipped() is shipped_devices.CPU_PLAIN
    assert ", oneDNN off" in hardware.model()


@pytest.mark.parametrize("value", ["", "1", "TRUE", "off", "no", " 0"])
def test_what_tensorflow_does_not_read_as_off_leaves_onednn_on(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", value)
    assert hardware.shipped() is shipped_devices.CPU_AMX
    assert "oneDNN off" not in hardware.model()


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_times_under_a_limit_of_onednn_are_stored_apart(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "avx512_core_bf16")
    assert hardware.model().endswith(", oneDNN up to AVX512_CORE_BF16")
    assert hardware.onednn_variable() == variable


def test_the_newer_name_of_the_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.onednn_variable() == hardware.onednn_limit() == ""
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "ALL")
    assert hardware.onednn_variable() == "ONEDNN_MAX_CPU_ISA"
    assert hardware.onednn_limit() == "ALL"


@pytest.mark.parametrize(
    ("asked", "variable", "said"),
    [
        (0, "3", ", 3 threads"),
        (4, "3", ", 4 threads"),  # what the job asks TensorFlow for goes first
        (0, "many", ""),
        (0, "0", ""),
    ],
)
def test_times_under_another_number_of_threads_are_stored_apart(
    monkeypatch: pytest.MonkeyPatch, asked: int, variable: str, said: str
) -> None:
    threading = hardware.tf.config.threading
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: asked)
    alone = hardware.model()
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", variable)
    before = alone.removesuffix(f", {asked} threads")
    assert hardware.model() == before + said


@pytest.mark.parametrize(
    ("quota", "said"), [(2.0, "64 cores, time of 2, "), (64.0, "64 cores, x86")]
)
def test_times_under_a_quota_of_the_cores_time_are_stored_apart(
    monkeypatch: pytest.MonkeyPatch, quota: float, said: str
) -> None:
    monkeypatch.setattr(hardware, "_cores", lambda: 64)
    alone = hardware.model()
    monkeypatch.setattr(control_groups, "cpus", lambda: quota)
    assert (hardware.model() == alone) is (quota == 64.0)
    assert said in hardware.model()


def test_cpus_without_a_name_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(hardware.platform, "machine", lambda: "aarch64")
    names = set()
    for part in ("0xd0c", "0xd40"):
        numbers = f"CPU implementer\t: 0x41\nCPU part\t: {part}\n"
        monkeypatch.setattr(hardware, "_CPUINFO", tmp_path / part)
        (tmp_path / part).write_text(f"processor\t: 0\n{numbers}")
        assert hardware.cpu_name() == f"aarch64 0x41 {part}"
        names.add(hardware.model())
    assert len(names) == 2
    monkeypatch.setattr(hardware, "_CPUINFO", tmp_path / "none")
    assert hardware.cpu_name() == "aarch64"


def test_a_cpu_of_another_kind_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.platform, "machine", lambda: "aarch64")
    assert hardware.shipped() is shipped_devices.CPU_PLAIN


def test_no_file_that_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(hardware, "_CPUINFO", tmp_path / "none")
    assert hardware.shipped() is shipped_devices.CPU_PLAIN


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[None]:
    """An A100, whose driver is not told; TensorFloat-32 is on, as it is by default."""
    monkeypatch.setattr(hardware, "_gpu", lambda: ("NVIDIA A100-SXM4-40GB", (8, 0)))
    files = tmp_path / "module", tmp_path / "driver"
    monkeypatch.setattr(hardware, "_DRIVERS", files)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("module", "550.54.15\n", "550.54.15"),
        ("module", "470.82\n", "470.82"),
        (
            "driver",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\nGCC 12.3",
            "535.104.05",
        ),
        (
            "driver",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.129.03\n",
            "535.129.03",
        ),
    ],
)
def test_the_name_of_a_gpu_has_the_version_of_its_driver(
    gpu: None, tmp_path: pathlib.Path, file: str, text: str, version: str
) -> None:
    assert hardware.model() == "NVIDIA A100-SXM4-40GB"
    (tmp_path / file).write_text(text)
    assert hardware.model() == f"NVIDIA A100-SXM4-40GB, driver {version}"


def test_a_driver_that_cannot_be_read_is_not_told(
    gpu: None, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "module").mkdir()
    (tmp_path / "driver").write_text("unknown\n")
    assert hardware.model() == "NVIDIA A100-SXM4-40GB"


def test_the_name_of_a_gpu_says_where_products_are_not_in_tensorfloat_32(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(False)
    assert hardware.model() == "NVIDIA A100-SXM4-40GB, TF32 off"
    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert hardware.model() == "NVIDIA A100-SXM4-40GB"
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert hardware.model() == "NVIDIA A100-SXM4-40GB, TF32 off"


def test_the_name_of_a_cpu_has_neither(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "module").write_text("550.54.15\n")
    monkeypatch.setattr(hardware, "_DRIVERS", (tmp_path / "module",))
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert "550" not in hardware.model()
    assert "TF32" not in hardware.model()


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An A100 and a T4, on a machine whose CPU is the one here."""
    monkeypatch.undo()
    gpus = [
        tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in (0, 1)
    ]
    cpu = tf.config.PhysicalDevice("/physical_device:CPU:0", "CPU")
    told = {
        gpus[0]: {"device_name": "NVIDIA A100", "compute_capability": (8, 0)},
        gpus[1]: {"device_name": "Tesla T4", "compute_capability": (7, 5)},
    }
    visible = {"GPU": gpus, "CPU": [cpu], None: [cpu, *gpus]}
    config = tf.config
    monkeypatch.setattr(config, "get_visible_devices", lambda kind=None: visible[kind])
    monkeypatch.setattr(config.experimental, "get_device_details", told.get)
    monkeypatch.setattr(config, "get_logical_device_configuration", {}.get)
    hardware.device.cache_clear()
    monkeypatch.setattr(hardware.profiles, "load", lambda *args: None)
    yield
    hardware.device.cache_clear()


def test_each_device_of_a_process_has_figures_and_a_name(two_gpus: None) -> None:
    usual = hardware.device()
    assert usual.native == ("float16", "bfloat16")
    assert hardware.device("GPU:0") == usual
    assert hardware.device("GPU:1").native == ("float16",)
    assert hardware.device("CPU:0").kind == "CPU"
    models = []
    for place in ("", "GPU:0", "GPU:1", "CPU:0"):
        with hardware.on(place):
            models.append(hardware.model().partition(",")[0])
    assert models[:3] == ["NVIDIA A100", "NVIDIA A100", "Tesla T4"]
    assert models[3] not in models[:3]
    assert hardware.kinds() == {"CPU", "GPU"}


def test_a_policy_is_settled_for_each_of_them(two_gpus: None) -> None:
    found = hardware.resolve_on("GPU:1", Policy())
    assert hardware.resolve(Policy()).policy == found.policy
    assert (found.place, found.kinds) == ("GPU:1", {"CPU", "GPU"})
    assert found.device == hardware.device("GPU:1")


def test_a_gpu_that_is_divided_counts_as_several(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tf.config.get_visible_devices("GPU")[0]
    parts = {first: [None, None]}
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", parts.get)
    native = [len(hardware.device(f"GPU:{number}").native) for number in range(3)]
    assert native == [2, 2, 1]


def test_what_is_measured_there_runs_there() -> None:
    context = context_lib.context()
    for place in ("CPU:0", ""):
        with hardware.on(place), tf.device("/CPU:0"), stopwatch.alone():
            assert context.device_name.endswith(place)
            assert bool(context.device_name) == bool(place)
