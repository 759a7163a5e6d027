"""Golden cases: a textproto in, `# output`, a textproto out; one law a file.

Comment lines at the top of a case: its law, and `# policy:` (a Policy), `# device:` (a
name in `cost.shipped_devices`), `# fetches:` (names; the ends by default). A case
without an output must not change. `pytest --update-golden` rewrites the outputs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from google.protobuf import text_format
from rewriting import CPU, GraphDef, rewritten

from amp.graph_rewrite.cost import shipped_devices
from amp.policy import Policy

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.pbtxt"))
OUTPUT = "\n# output\n"


@dataclasses.dataclass(frozen=True)
class Case:
    """A case file, read."""

    source: str
    flags: dict[str, str]
    graph: GraphDef
    want: str


def read(path: Path) -> Case:
    source, _, want = path.read_text().partition(OUTPUT)
    comments = [line[2:] for line in source.splitlines() if line.startswith("# ")]
    pairs = [line.partition(": ") for line in comments]
    flags = {k: v for k, _, v in pairs if k in ("policy", "device", "fetches")}
    return Case(source, flags, text_format.Parse(source, GraphDef()), want)


def text(proto: GraphDef) -> str:
    """The nodes and functions of a graph, tensors as text."""
    return text_format.MessageToString(proto, use_short_repeated_primitives=True)


def output(case: Case) -> str:
    policy = Policy.parse(case.flags.get("policy", "Policy()"))
    device = getattr(shipped_devices, case.flags.get("device", ""), CPU)
    fields = {f.name: getattr(policy, f.name) for f in dataclasses.fields(Policy)}
    fetches = case.flags.get("fetches", "").split()
    made = rewritten(case.graph, device, fetches=fetches, **fields).graph
    return "" if made == case.graph else text(made)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_gives_its_output(path: Path, request: pytest.FixtureRequest) -> None:
    case = read(path)
    made = output(case)
    if request.config.getoption("--update-golden"):
        path.write_text(case.source.rstrip("\n") + (OUTPUT + made if made else "\n"))
        case = read(path)
    if case.want:
        want = text(text_format.Parse(case.want, GraphDef()))
        assert made.splitlines() == want.splitlines()
    else:
        assert made == ""


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_says_its_law_first(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")


def test_there_are_cases() -> None:
    assert len(CASES) >= 15
