"""`profile`: it prints and parses, and what it measured is what is planned from."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pathlib
import re
import statistics
from collections.abc import Iterator

import hypothesis
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from rewriting import context_of, graph_def, module_of, plan_of, v1

from amp.errors import ProfileError
from amp.graph_rewrite.cost import device as devices
from amp.graph_rewrite.cost import resolution, shipped_devices
from amp.graph_rewrite.cost.device import ITEM
from amp.graph_rewrite.cost.device_profile import (
    BOUNDS,
    EXECUTORS,
    Point,
    Profile,
    apply,
)
from amp.graph_rewrite.cost.model import CostModel
from amp.graph_rewrite.plan import Plan
from amp.integration.measuring import hardware, profiles
from amp.policy import Policy

SIZE = 1024
WORKS = {
    "start": ("elementwise", "matmul"),
    "bytes": ("elementwise", "transcendental", "matmul", "copy", "cast"),
    "arithmetic": ("matmul", "conv"),
}


def point(work: str, bound: str, dtype: str, gain: float) -> Point:
    """A point on a machine of 10 GB/s and 100 GFLOP/s, and its gain in 16 bits."""
    moved, operations = (0, 0.0) if bound == "start" else (10**7, 0.0)
    if bound == "arithmetic":
        operations = 2.0e9
    single = {"start": 2e-6, "bytes": 4 * moved / 1e10, "arithmetic": 2e-2}[bound]
    seconds = single / (1.0 if dtype == "float32" else gain)
    return Point(work, bound, f"{work} {bound}", dtype, moved, operations, seconds)


def profile(gain: float, executor: str = "kernels") -> Profile:
    points = tuple(
        point(work, bound, dtype, gain)
        for bound, works in WORKS.items()
        for work in works
        for dtype in ("float32", "bfloat16")
        if (work, dtype) != ("cast", "float32")
    )
    return Profile("a CPU", "2.21.0", executor, points)


def planned(device: devices.Device) -> Plan:
    """The plan for two products, an activation between them."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [SIZE, SIZE], name="x")
        hidden = tf.tanh(tf.matmul(x, x, name="first"), name="activation")
        tf.exp(tf.matmul(hidden, hidden, name="second"), name="end")

    module = module_of(graph_def(build))
    context = context_of(module, shipped_devices.A100, assignment="cost")
    return plan_of(module, context, CostModel(device, "bfloat16"))


texts = st.text(min_size=1, max_size=20)
sizes = st.floats(min_value=0, max_value=1e18)
points = st.builds(
    Point,
    work=texts,
    bound=st.sampled_from(BOUNDS),
    case=texts,
    dtype=st.sampled_from(sorted(ITEM)),
    moved=st.integers(0, 10**12),
    operations=sizes,
    seconds=st.floats(min_value=1e-9, max_value=1e6),
    hopeless=st.booleans(),
)
any_profile = st.builds(
    Profile, texts, texts, st.sampled_from(EXECUTORS), st.lists(points).map(tuple)
)


@hypothesis.given(any_profile)
def test_it_prints_and_parses(given: Profile) -> None:
    assert Profile.parse(given.to_json()) == given


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"schema": 0}, "of schema 0"),
        ({"points": 3}, "no device profile"),
        ({"points": [{"work": "conv"}]}, "no device profile"),
        ({"executor": "tpu"}, "executor is to be one of"),
        ({"device": ""}, "to be names"),
        ({"extra": 1}, "no device profile"),
    ],
)
def test_what_is_no_profile_says_so(change: dict[str, object], found: str) -> None:
    text = json.dumps(json.loads(profile(2.0).to_json()) | change)
    with pytest.raises(ProfileError, match=found) as caught:
        Profile.parse(text, "there.json")
    assert caught.value.where == "there.json"
    assert "amp tune" in caught.value.remedy


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(seconds: float) -> None:
    bad = dataclasses.replace(profile(2.0).points[0], seconds=seconds)
    text = dataclasses.replace(profile(2.0), points=(bad,)).to_json()
    with pytest.raises(ProfileError, match="cannot be"):
        Profile.parse(text)


@pytest.mark.parametrize("gain", [0.5, 0.9])
@pytest.mark.parametrize(
    "device", [shipped_devices.CPU_PLAIN, shipped_devices.CPU_AMX], ids=lambda d: d.name
)
def test_slower_everywhere_converts_nothing(
    device: devices.Device, gain: float
) -> None:
    measured = apply(profile(gain), device)
    assert planned(measured).low == frozenset()
    assert measured.native == device.native  # its kernels round as they did
    assert measured.paying == ()
    settled = resolution.resolve(Policy(), measured)
    assert settled.policy is None
    assert (f"at {gain:.2g} of float32's" in settled.reason) == bool(device.native)


def test_ten_times_faster_converts_the_products() -> None:
    measured = apply(profile(10.0), shipped_devices.CPU_PLAIN)
    plan = planned(measured)
    assert {"first", "activation", "second"} <= plan.low
    assert plan.seconds16 < plan.seconds32
    assert measured.native == ("bfloat16",)
    assert resolution.resolve(Policy(), measured).policy is not None


def test_each_point_is_predicted_as_it_was_measured() -> None:
    given = profile(3.0)
    device = apply(given, shipped_devices.CPU_AMX)
    clock = CostModel(device, "bfloat16")
    for measured in given.points:
        if measured.work == "cast":
            predicted = clock.cast((measured.moved,))
            assert predicted == pytest.approx(measured.seconds, rel=1e-2)
            continue
        times = clock.node(measured.work, measured.moved, measured.operations)
        if measured.bound == "arithmetic":  # bytes are counted apart here
            times = clock.node(measured.work, 0, measured.operations)
        taken = times[measured.dtype != "float32"]
        assert taken == pytest.approx(measured.seconds, rel=1e-2), measured.case


def test_what_was_not_measured_stays_as_it_was() -> None:
    device = apply(
        dataclasses.replace(profile(3.0), points=()), shipped_devices.CPU_AMX
    )
    told = {"name", "source"}
    for field in dataclasses.fields(device):
        if field.name not in told:
            was = getattr(shipped_devices.CPU_AMX, field.name)
            assert getattr(device, field.name) == was, field.name


def test_under_xla_bandwidth_is_that_of_a_loop_which_only_casts() -> None:
    """In a chain, operations are not moved from and to memory one by one."""
    given = profile(3.0, "xla")
    device = apply(given, shipped_devices.CPU_AMX).under(True)
    casts = [one for one in given.points if one.work == "cast"]
    assert casts
    rates = [6 * one.moved / one.seconds for one in casts]
    assert device.bandwidth == pytest.approx(statistics.geometric_mean(rates), rel=0.05)
    times = CostModel(device, "bfloat16").node("elementwise", casts[0].moved, 0.0)
    kernels = apply(profile(3.0), shipped_devices.CPU_AMX)
    same = CostModel(kernels, "bfloat16").node("elementwise", casts[0].moved, 0.0)
    assert times == pytest.approx(same)


def test_xla_and_kernels_are_apart() -> None:
    kernels = apply(profile(10.0), shipped_devices.CPU_AMX)
    assert kernels.compiled == shipped_devices.CPU_AMX.compiled
    both = apply(profile(0.5, "xla"), kernels)
    assert both.under(False).speed == kernels.speed
    assert planned(both.under(True)).low == frozenset()
    assert "calibrated" in both.name
    gpu = apply(profile(10.0), shipped_devices.A100)
    assert gpu.under(True) == shipped_devices.A100


def test_a_person_can_read_it() -> None:
    slow = dataclasses.replace(
        point("conv", "arithmetic", "float16", 1e-3), case="slow"
    )
    single = dataclasses.replace(point("conv", "arithmetic", "float32", 1), case="slow")
    hopeless = dataclasses.replace(slow, hopeless=True)
    given = dataclasses.replace(profile(2.0), points=(single, hopeless))
    lines = str(given).splitlines()
    assert lines[0] == "a CPU, TensorFlow 2.21.0, kernels"
    words = ["slow", "arithmetic", "20.00", "ms", "not", "run", "0.00x", "(hopeless)"]
    assert lines[-1].split() == words


@pytest.fixture
def cache(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    hardware.device.cache_clear()
    yield tmp_path
    hardware.device.cache_clear()


def mine(executor: str = "kernels") -> Profile:
    """A profile of this machine, in which bfloat16 is 10 times faster."""
    given = profile(10.0, executor)
    return dataclasses.replace(
        given, device=hardware.model(), tensorflow=tf.__version__
    )


@pytest.mark.usefixtures("cache")
def test_a_stored_profile_is_planned_from() -> None:
    before = hardware.device()
    assert before == hardware.shipped()
    assert "calibrated" not in before.name
    for executor in EXECUTORS:
        profiles.save(mine(executor))
    hardware.device.cache_clear()
    after = hardware.device()
    assert after.name == f"{before.name}, calibrated, XLA calibrated"
    assert "measured here" in after.source
    assert planned(after).low


def test_without_the_variable_it_is_the_cache_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AMP_CACHE_DIR")
    directory = profiles.directory()
    assert directory.parts[-2:] == ("tf-amp", "profiles")
    assert directory.is_absolute()


def spoilt() -> dict[str, bytes]:
    text = mine().to_json()
    return {
        "no JSON": b"{",
        "no text": b"\xff\xfe\x00",
        "half a file": text[: len(text) // 2].encode(),
        "another schema": text.replace('"schema": 2', '"schema": 99').encode(),
        "another TensorFlow": dataclasses.replace(mine(), tensorflow="1.0")
        .to_json()
        .encode(),
        "another device": dataclasses.replace(mine(), device="toaster")
        .to_json()
        .encode(),
    }


@pytest.mark.parametrize("kind", list(spoilt()))
def test_what_cannot_be_used_is_ignored_with_one_warning(
    cache: pathlib.Path, kind: str
) -> None:
    file = profiles.save(mine())
    file.write_bytes(spoilt()[kind])
    with pytest.warns(RuntimeWarning, match="`amp tune` makes a new one") as told:
        found = hardware.device()
    assert found == hardware.device() == hardware.shipped()
    assert [str(file) in str(one.message) for one in told] == [True]
    assert file.read_bytes() == spoilt()[kind]


def test_an_unreadable_file_is_ignored(
    cache: pathlib.Path,
) -> None:
    file = profiles.save(mine())
    file.unlink()
    file.mkdir()
    with pytest.warns(RuntimeWarning, match=re.escape(str(file))):
        assert hardware.device() == hardware.shipped()


def test_a_place_that_cannot_be_written_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ProfileError, match="cannot be stored") as caught:
        profiles.save(mine())
    assert "AMP_CACHE_DIR" in caught.value.remedy


@pytest.mark.parametrize(
    "other",
    [("a CPU!", "2.21.0", "xla"), ("a CPU", "2.20.0", "xla"), ("a CPU", "2.21.0", "k")],
)
def test_each_device_version_and_executor_has_a_file(other: tuple[str, ...]) -> None:
    assert profiles.path(*other) != profiles.path("a CPU", "2.21.0", "xla")


def write(directory: str, number: int, times: int) -> None:
    os.environ["AMP_CACHE_DIR"] = directory
    given = profile(float(number))
    given = dataclasses.replace(given, points=given.points * (50 * number))
    for _ in range(times):
        profiles.save(given)


@pytest.mark.processes
def test_two_processes_at_once_leave_one_whole_file(cache: pathlib.Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=write, args=(str(cache), number, 40))
        for number in (1, 2)
    ]
    key = ("a CPU", "2.21.0", "kernels")
    write(str(cache), 1, 1)
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        assert profiles.load(*key) is not None  # whole at every moment
        seen += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen
    (file,) = (cache / "profiles").iterdir()  # and nothing beside it
    assert Profile.parse(file.read_text()).points
