"""A comparison as text: what it begins with, and that it fits a terminal."""

from __future__ import annotations

import json
import math

import pytest

from amp.graph_rewrite.comparison import wording
from amp.graph_rewrite.comparison.alone import KernelError
from amp.graph_rewrite.comparison.comparison import (
    ComparedTensor,
    Comparison,
    Parting,
)
from amp.graph_rewrite.comparison.suggestion import Suggestion

LONG = "model/encoder/layer_with_a_long_name/attention/query/MatMul"


def tensor(name, error=0.0, role="", **more):
    given = {"overflowed": 0.0, "underflowed": 0.0, "denormal": 0.0}
    given |= {"small_error": 0.0, "largest": 1.0, "allowed": 0.01} | more
    return ComparedTensor(
        name=name, op="MatMul", dtype="float16", role=role, error=error, **given
    )


def comparison(*tensors, **more):
    given = {"parting": None, "kernels": (), "kernels_checked": 3} | more
    return Comparison("step", "float16", tensors, **given)


def test_no_line_is_wider_than_80_columns_but_for_what_is_to_be_copied():
    found = comparison(
        *(tensor(f"{LONG}_{number}", 0.5, "result") for number in range(30)),
        parting=Parting(
            0, f"train.py:12  {'x = tf.matmul(y, z); ' * 6}", "range", LONG
        ),
        suggestion=Suggestion(0.1, (LONG, LONG), 2, 0.05, False, 4, 9, True),
        notes=("a note " * 40,),
        loss_scale=1.0,
        loss_scale_note=f"; {'words ' * 30}",
    )
    lines = str(found).splitlines()
    assert [line for line in lines if len(line) > wording.WIDTH] == [
        f"  {LONG}_0 (MatMul, float16)",
        f"    AMP_KEEP='{LONG},{LONG}'",
    ]
    assert any("10 more tensors" in line for line in lines)
    for width in (40, 60):  # a phone's terminal
        narrow = found.text(width)
        keep = f"    AMP_KEEP='{LONG},{LONG}'"
        assert [line for line in narrow.splitlines() if len(line) > width] == [keep]
        assert "10 more tensors" in " ".join(narrow.split())


def test_the_worst_come_first_by_what_rounding_does_not_explain():
    found = comparison(
        tensor("large", 0.4, allowed=0.5),
        tensor("small", 0.02),
        tensor("gone", 0.0, overflowed=0.1),
        tensor("noisy", 0.9, noise=True),
    )
    rows = [line.split()[0] for line in str(found).splitlines()[-4:]]
    assert rows == ["gone", "small", "large", "noisy"]


def test_results_and_gradients_are_judged_and_noise_is_not():
    found = comparison(
        tensor("inner", 5.0),
        tensor("loss", 0.005, "result"),
        tensor("bias", 2.0, "gradient", noise=True),
    )
    assert found.error == 0.005
    assert found.within(0.005)
    assert not found.within(0.004)
    assert found.within()
    assert "noise" in str(found)


def test_without_a_bound_rounding_is_the_bound_and_a_wrong_kernel_fails():
    assert not comparison(tensor("loss", 0.02, "result")).within()
    assert not comparison(tensor("loss", 0.0, "result", overflowed=0.5)).within()
    wrong = (KernelError("sum", "Sum", 0.5, 0.01),)
    found = comparison(tensor("loss", 0.0, "result"), kernels=wrong)
    assert not found.within()
    text = " ".join(str(found).split())
    assert "CONVERSION FAULT: sum (Sum) is off by 0.5" in text


def test_where_no_result_is_floating_all_tensors_are_judged():
    assert comparison(tensor("inner", 0.3)).error == 0.3


def test_where_all_results_are_noise_no_other_tensor_is_judged():
    found = comparison(tensor("inner", 0.3), tensor("bias", 2.0, "result", noise=True))
    assert found.error == 0.0
    assert found.within()
    assert found.within(0.1)
    assert "all of them are noise, by which nothing is judged" in str(found)
    assert "no floating tensor" not in str(found)


def test_what_is_not_finite_is_an_infinite_error():
    assert comparison(tensor("y", 0.1, "result", overflowed=0.1)).error == math.inf


def test_the_json_has_what_the_text_has():
    read = json.loads(comparison(tensor("y", 0.1, "result")).to_json())
    assert read["error"] == 0.1
    assert [(row["name"], row["parted"]) for row in read["tensors"]] == [("y", True)]


def test_an_error_that_is_not_finite_is_null_in_json():
    def refused(constant):
        raise ValueError(f"{constant} is no JSON")

    alone = (KernelError("sum", "Sum", math.inf, 0.01),)
    over = tensor("y", math.inf, "result", overflowed=0.1)
    text = comparison(over, kernels=alone).to_json()
    read = json.loads(text, parse_constant=refused)
    assert read["error"] is None
    assert read["tensors"][0]["error"] is None
    assert read["kernels"][0]["error"] is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"left": 0}, "converts nothing at all"),
        ({"error": 0.5}, "no set of nodes brings under the bound"),
        ({"complete": False}, "cut short"),
        ({"all": True}, "AMP_ASSIGNMENT=all AMP_KEEP='a'"),
    ],
)
def test_a_suggestion_says_what_it_is_worth(more, said):
    given = {"bound": 0.1, "keep": ("a",), "nodes": 1, "error": 0.05, "all": False}
    given |= {"left": 4, "tried": 9, "complete": True} | more
    found = comparison(tensor("y", 0.1, "result"), suggestion=Suggestion(**given))
    assert said in " ".join(str(found).split())


def test_names_of_functions_are_those_of_the_user():
    assert wording.function("__inference_train_step_1234") == "train_step"
    assert wording.function("serving") == "serving"


def test_a_share_is_never_rounded_to_none():
    assert [wording.share(part) for part in (0.0, 1e-9, 0.5, 1.0)] == [
        *("", "<1%", "50%", "100%")
    ]
