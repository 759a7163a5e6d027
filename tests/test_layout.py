"""The rooms: what each module says of itself, what it imports, what it may not do."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = ("cli", "graph_rewrite", "integration", "loss_scaling")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(ROOT.glob("amp/**/*.py"))
}
FORBIDS = re.compile(r"\b(no|not|nor|nothing|never|only|left alone)\b", re.IGNORECASE)


def tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: pathlib.Path, *, everywhere: bool) -> Iterator[str]:
    """The modules that a file imports, at its top or wherever.

    What is imported for types only, or with `importlib`, is not counted.
    """
    body = tree(path).body
    for node in (n for top in body for n in ast.walk(top)) if everywhere else body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                known = name in MODULES or f"{name}.__init__" in MODULES
                yield name if known else str(node.module)


def ours(name: str) -> set[str]:
    """The modules of this package that a module imports at its top."""
    found = set(imports(MODULES[name], everywhere=False))
    return {n for n in found if n == "amp" or n.startswith("amp.")}


def importers(prefix: str) -> set[str]:
    return {
        name
        for name, path in MODULES.items()
        for imported in imports(path, everywhere=True)
        if imported == prefix or imported.startswith(f"{prefix}.")
    }


@pytest.mark.parametrize("name", MODULES)
def test_docstring_says_what_lives_here_then_what_may_not(name):
    text = ast.get_docstring(tree(MODULES[name]))
    assert text, "no docstring"
    first, _, rest = text.partition("\n")
    assert first.endswith((".", "?"))
    if rest:
        assert rest.startswith("\n"), "the second paragraph stands apart"
        assert FORBIDS.search(text)
    else:  # one line may do for what is seen at a glance
        assert len(MODULES[name].read_text().splitlines()) <= 50


@pytest.mark.parametrize(
    ("room", "may"),
    [
        ("amp.errors", ()),
        ("amp.loss_scaling.scale", ("amp.errors",)),
        (
            "amp.loss_scaling",
            ("amp.errors", "amp.loss_scaling", "amp.graph_rewrite.graph.ir"),
        ),
        ("amp.policy", ("amp.errors", "amp.loss_scaling.scale")),
        (
            "amp.graph_rewrite",
            ("amp.errors", "amp.policy", "amp.loss_scaling.scale", "amp.graph_rewrite"),
        ),
        (
            "amp.integration",
            (
                *("amp.errors", "amp.policy", "amp.loss_scaling"),
                *("amp.graph_rewrite", "amp.integration"),
            ),
        ),
        ("amp.cli", ("amp.errors", "amp.policy", "amp.integration", "amp.cli")),
        ("amp.__init__", ()),
    ],
)
def test_imports_point_one_way(room, may):
    for name in MODULES:
        if name == room or name.startswith(f"{room}."):
            strange = {n for n in ours(name) if not n.startswith(tuple(may) or "-")}
            assert not strange, name


def test_imports_make_no_circle():
    waiting = {name: ours(name) & MODULES.keys() for name in MODULES}
    while waiting:
        ready = {name for name, needs in waiting.items() if not needs & waiting.keys()}
        assert ready, f"each of these needs another of them: {sorted(waiting)}"
        waiting = {name: needs for name, needs in waiting.items() if name not in ready}


def test_only_rewrite_knows_the_whole_pipeline():
    phases = {f"amp.graph_rewrite.{n}" for n in ("program", "decide", "apply")}
    assert {name for name in MODULES if phases <= ours(name)} == {
        "amp.graph_rewrite.rewrite"
    }


DOOR = {"amp.graph_rewrite.graph.serde", "amp.graph_rewrite.graph.attributes"}


def test_one_door_for_protobuf():
    assert importers("tensorflow.core") == DOOR


def test_who_may_import_tensorflow():
    private = {n for n in importers("tensorflow.python") if "integration" not in n}
    assert private == {
        "amp.graph_rewrite.graph.op_schema",
        "amp.graph_rewrite.graph.attributes",
    }
    rewriter = {n for n in importers("tensorflow") if "graph_rewrite" in n}
    assert rewriter == {"amp.graph_rewrite.graph.op_schema"} | DOOR
    for name in ("amp.errors", "amp.policy", "amp.loss_scaling.scale"):
        assert name not in importers("tensorflow")
    assert not {n for n in importers("tensorflow") if n.startswith("amp.cli")}


def test_only_the_command_prints_and_exits():
    for name, path in MODULES.items():
        calls = {
            ast.unparse(node.func)
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Call)
        }
        if not name.startswith("amp.cli."):
            assert not calls & {"print", "sys.exit", "exit", "os._exit"}, name


def test_models_and_the_training_script_do_not_know_the_plugin():
    for path in [*ROOT.glob("models/*.py"), ROOT / "examples/train_digits.py"]:
        found = {n.partition(".")[0] for n in imports(path, everywhere=True)}
        assert "amp" not in found, path.name
        code = ast.unparse(tree(path))
        assert not re.search(r"bfloat16|float16|mixed_precision", code), path.name


def test_files_are_not_called_utils():
    rooms = ("amp", "benchmarks", "convergence", "examples", "models")
    names = {p.stem for room in rooms for p in (ROOT / room).glob("**/*.py")}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


def test_the_map_of_files_names_every_room():
    readme = (ROOT / "README.md").read_text()
    _, _, chart = readme.partition("## Map of files")
    rooms = [f"amp/{room}/" for room in ROOMS]
    rooms += ["models/", "examples/", "tests/", "docs/", "benchmarks/", "convergence/"]
    rooms += ["amp/policy.py", "amp/errors.py", ".ci/"]
    for room in rooms:
        assert room in chart, room
    found = {p.parent.name for p in ROOT.glob("amp/*/__init__.py")}
    assert found == set(ROOMS)
    design = (ROOT / "docs/design.md").read_text()
    for path in MODULES.values():
        if path.stem != "__init__":
            assert re.search(rf"`{path.stem}\b", design), path.name
