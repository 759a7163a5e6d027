"""`verify`: each law has a graph that breaks it, and says which node does."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from rewriting import context_of, graph_def, matmul_chain, module_of, settled, v1

from amp.errors import VerifyError
from amp.graph_rewrite import rewrite, verify
from amp.graph_rewrite.apply import apply
from amp.graph_rewrite.candidates.context import type_ports
from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.plan import CastsToMake, MadeCast
from amp.graph_rewrite.verify import Problem


def main() -> ir.Graph:
    return module_of(graph_def(matmul_chain)).main


def edited(name: str, graph: ir.Graph | None = None, **changes: object) -> ir.Graph:
    graph = graph or main()
    node = graph.nodes[name].changed(**changes)
    return graph.with_nodes({**graph.nodes, name: node})


def typed(graph: ir.Graph) -> dict:
    return type_ports(graph, context_of(module_of(graph_def(matmul_chain))))


def found(problems: object) -> list[Problem]:
    return list(problems)


def test_a_good_graph_breaks_no_law() -> None:
    graph = main()
    assert found(verify.well_formed(graph)) == []
    assert found(verify.well_counted(graph, op_schema.schema)) == []
    assert found(verify.well_typed(graph, typed(graph))) == []
    assert found(verify.same_interface(graph, graph)) == []


def test_a_missing_input_is_found() -> None:
    (problem,) = found(verify.well_formed(edited("tanh", inputs=(("ghost", 0),))))
    assert problem.at == "tanh"
    assert "'ghost', which is not there" in problem.found


def test_a_missing_control_input_is_found() -> None:
    graph = main()
    node = dataclasses.replace(graph.nodes["tanh"], controls=("ghost",))
    (problem,) = found(
        verify.well_formed(graph.with_nodes({**graph.nodes, "tanh": node}))
    )
    assert "'ghost', which is not there" in problem.found


@pytest.mark.parametrize("inputs", [(), (("x", 0), ("x", 0))])
def test_a_wrong_number_of_inputs_is_found(inputs: tuple) -> None:
    graph = edited("tanh", inputs=inputs)
    (problem,) = found(verify.well_counted(graph, op_schema.schema))
    assert problem.found == f"node 'tanh' has {len(inputs)} inputs"
    assert problem.allowed == "1, as Tanh takes"


def test_a_number_of_inputs_is_counted_and_not_made() -> None:
    """A damaged N of a billion would take all memory as a list."""
    node = ir.Node("pack", "Pack", (), (), "", None, {"N": 10**9})
    (problem,) = found(
        verify.well_counted(ir.Graph("", {"pack": node}), op_schema.schema)
    )
    assert problem.allowed == "1000000000, as Pack takes"


def test_a_missing_result_is_found() -> None:
    results = (ir.Result("y", ir.FLOAT, ("ghost", 0)),)
    graph = main().with_nodes(main().nodes, results)
    (problem,) = found(verify.well_formed(graph))
    assert problem.at == "y"


def test_a_cycle_is_found() -> None:
    (problem,) = found(verify.well_formed(edited("product", inputs=(("tanh", 0),) * 2)))
    assert "depends on itself" in problem.found


def test_an_edge_read_in_another_type_is_found() -> None:
    graph = edited("tanh", updates={"T": ir.Type(ir.BFLOAT16)})
    (one, two) = found(verify.well_typed(graph, typed(graph)))
    assert (
        "says that input 'x' has type bfloat16, but product:0 is float32" in one.found
    )
    assert "attribute 'T' of node 'out'" in two.found


def test_a_reference_that_is_read_in_another_type_is_found() -> None:
    def build() -> None:
        variable = v1.get_variable("v", [], use_resource=False)
        tf.identity(variable._ref(), name="read")

    graph = module_of(graph_def(build)).main
    assert found(verify.well_typed(graph, typed(graph))) == []
    graph = edited("read", graph, updates={"T": ir.Type(ir.INT32)})
    (problem,) = found(verify.well_typed(graph, typed(graph)))
    assert "has type int32, but v:0 is float32 reference" in problem.found


def test_an_output_that_is_not_there_is_found() -> None:
    graph = edited("tanh", inputs=(("product", 5),))
    (problem,) = found(verify.well_typed(graph, typed(graph)))
    assert "not one of its outputs" in problem.found


def test_a_result_in_another_type_is_found() -> None:
    results = (ir.Result("y", ir.HALF, ("tanh", 0)),)
    graph = main().with_nodes(main().nodes, results)
    (problem,) = found(verify.well_typed(graph, typed(graph)))
    assert problem.found == "result 'y' has type float16 but is float32"


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("args", (ir.Argument("a", ir.HALF),), "arguments"),
        ("results", (ir.Result("y", ir.HALF, ("tanh", 0)),), "results"),
        ("control_results", ("tanh",), "control results"),
    ],
)
def test_a_changed_interface_is_found(field: str, value: object, what: str) -> None:
    changed = dataclasses.replace(main(), **{field: value})
    (problem,) = found(verify.same_interface(main(), changed))
    assert problem.found.startswith(f"the {what} changed")


def test_a_node_that_lost_its_name_is_found() -> None:
    left = {name: node for name, node in main().nodes.items() if name != "tanh"}
    (problem,) = found(verify.same_interface(main(), main().with_nodes(left)))
    assert problem.found == "node 'tanh' is gone"


def test_a_node_behind_a_marker_that_turned_is_found() -> None:
    before, after = main(), edited("tanh", updates={"T": ir.Type(ir.HALF)})
    problems = verify.float32_behind_markers(
        typed(after), typed(before), frozenset({"tanh", "out"})
    )
    (problem,) = found(problems)
    assert problem.at == "tanh"


def test_a_second_rewrite_that_would_convert_more_is_found() -> None:
    (problem,) = found(verify.stable(0.1, 2e-9, {"tanh"}))
    assert "would convert 'tanh' as well" in problem.found
    assert found(verify.stable(0.0, 2e-9, set())) == []
    # A gain that the rounding of the cut may hide is none; where nothing is weighed
    # any node counts.
    assert found(verify.stable(1e-9, 2e-9, {"tanh"})) == []
    assert found(verify.stable(-1.0, float("-inf"), {"tanh"}))


def test_the_first_problem_is_raised_in_four_parts() -> None:
    problems = [Problem("it is broken", "node a", "whole ones"), Problem("b", "b", "b")]
    with pytest.raises(VerifyError, match="it is broken") as caught:
        verify.enforce(problems, VerifyError, "the twin", "report it")
    assert caught.value.where == "the twin, node a"
    assert caught.value.allowed == "whole ones"
    assert caught.value.remedy == "report it"
    verify.enforce([], VerifyError, "the twin", "report it")


def test_types_are_called_by_name() -> None:
    assert verify.type_name(14) == "bfloat16"
    assert verify.type_name(101) == "float32 reference"
    assert verify.type_name(999 - ir.REF_OFFSET * 8) == "DataType 99 reference"


@pytest.mark.parametrize("fault", ["untyped", "renamed"])
def test_a_rewrite_checks_what_it_made(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    honest = apply.apply

    def faulty(graph: ir.Graph, *args: object) -> ir.Graph:
        made = honest(graph, *args)
        nodes = dict(made.nodes)
        if fault == "renamed":
            del nodes["w"]
        else:
            nodes["tanh"] = nodes["tanh"].changed(updates={"T": ir.Type(ir.HALF)})
        return made.with_nodes(nodes)

    monkeypatch.setattr(apply, "apply", faulty)
    module = module_of(graph_def(matmul_chain))
    with pytest.raises(VerifyError) as caught:
        rewrite.rewrite(module, settled())
    assert "the twin of the GraphDef" in caught.value.where
    assert "the original runs unchanged" in caught.value.remedy


PLANNED = CastsToMake(
    frozenset({MadeCast(("product", 0), "up"), MadeCast(("w", 0), "folded")}),
    open=frozenset({("x", 0)}),
)


def test_the_casts_planned_are_the_casts_made() -> None:
    assert found(verify.casts_as_planned(PLANNED, PLANNED.casts)) == []


@pytest.mark.parametrize("missing", sorted(PLANNED.casts))
def test_a_planned_cast_that_is_not_made_is_found(missing: MadeCast) -> None:
    made = PLANNED.casts - {missing}
    (problem,) = found(verify.casts_as_planned(PLANNED, made))
    assert problem.at == missing.edge[0]
    assert f"has 0 casts of the form '{missing.form}'" in problem.found


def test_a_cast_that_is_made_twice_is_found() -> None:
    made = [*PLANNED.casts, MadeCast(("product", 0), "up")]
    (problem,) = found(verify.casts_as_planned(PLANNED, made))
    assert "product:0 has 2 casts of the form 'up'" in problem.found
    assert problem.allowed == "what the plan has: 1"


@pytest.mark.parametrize("form", ["down", "late"])
def test_a_cast_that_was_not_planned_is_found(form: str) -> None:
    made = [*PLANNED.casts, MadeCast(("product", 0), form)]
    (problem,) = found(verify.casts_as_planned(PLANNED, made))
    assert problem.allowed == "what the plan has: 0"


def test_casts_of_what_had_casts_before_are_not_asked_for() -> None:
    made = [*PLANNED.casts, MadeCast(("x", 0), "up")]
    assert found(verify.casts_as_planned(PLANNED, made)) == []
