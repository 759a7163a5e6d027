"""The rooms: what each module says of itself, what it imports, what it may not do."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Container, Iterator, Mapping, Set

import pytest

from amp.graph_rewrite import phases
from amp.graph_rewrite.graph import ir
from amp.integration import install

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = (
    "callbacks",
    "cli",
    "graph_rewrite",
    "integration",
    "loss_scaling",
    "report_page",
)
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


MAY_IMPORT = {
    "amp.errors": (),
    "amp.loss_scaling.scale": ("amp.errors",),
    "amp.loss_scaling": (
        *("amp.errors", "amp.lazy_names", "amp.loss_scaling", "amp.messages"),
        "amp.once",
        *("amp.graph_rewrite.graph", "amp.graph_rewrite.ops"),
    ),
    "amp.lazy_names": (),
    "amp.messages": (),
    "amp.once": (),
    "amp.spelling": (),
    "amp.policy": ("amp.errors", "amp.loss_scaling.scale", "amp.spelling"),
    "amp.variables": ("amp.policy", "amp.spelling"),
    "amp.report_page": (),
    "amp.graph_rewrite": (
        *("amp.errors", "amp.policy", "amp.loss_scaling.scale", "amp.spelling"),
        *("amp.graph_rewrite", "amp.report_page"),
    ),
    "amp.integration": (
        *("amp.errors", "amp.policy", "amp.loss_scaling", "amp.messages"),
        *("amp.once", "amp.spelling", "amp.variables"),
        *("amp.graph_rewrite", "amp.integration"),
    ),
    "amp.cli": (
        *("amp.errors", "amp.policy", "amp.integration", "amp.cli"),
        *("amp.messages", "amp.spelling", "amp.variables"),
    ),
    "amp.callbacks": (
        *("amp.lazy_names", "amp.messages"),
        "amp.loss_scaling",
        "amp.integration",
        "amp.callbacks",
    ),
    "amp.__init__": ("amp.lazy_names",),
    "amp.__main__": ("amp.cli",),
}


def within(room: str) -> set[str]:
    return {name for name in MODULES if name == room or name.startswith(f"{room}.")}


@pytest.mark.parametrize(("room", "may"), MAY_IMPORT.items())
def test_imports_point_one_way(room, may):
    assert within(room), "no such room"
    for name in within(room):
        strange = {n for n in ours(name) if not n.startswith(tuple(may) or "-")}
        assert not strange, name


def test_of_every_module_it_is_said_what_it_may_import():
    assert set().union(*map(within, MAY_IMPORT)) == MODULES.keys()


# A room or a file beside the rooms; each imports only from those before it.
REWRITER = (
    *(
        "figures",
        "json_fields",
        "graph",
        "ops",
        "plan",
        "values",
        "decisions",
        "outcomes",
    ),
    *("explanation", "report", "plan_diff"),
    *("normalize", "candidates", "cost", "assign", "apply", "fusion"),
    *("verify", "circumstances", "checks", "steps", "report_builder", "phases"),
    *("rewrite", "comparison"),
)
INTEGRATION = (
    *("atomic_files", "process", "imports", "hooks"),
    *("conversion", "wrapping"),
    *(
        "nesting",
        "active",
        "fallback",
        "as_written",
        "heap",
        "tensor_pool",
        "forward_mode",
    ),
    *("measuring", "report_directories", "keras_layers", "source_lines", "reports"),
    *("newest_reports",),
    *(
        "runtime",
        "racing",
        "contests",
        "observing",
        "functions",
        "sessions",
        "distributed",
        "training",
    ),
    *("install", "api", "by_hand", "own_updates", "files", "comparing"),
    *("launch", "doctor"),
)


def modules_in(root: pathlib.Path) -> dict[str, pathlib.Path]:
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in sorted(root.glob("amp/**/*.py"))
    }


@functools.cache
def arrows(root: pathlib.Path) -> dict[str, set[str]]:
    """By module, the modules of the package that it imports: anywhere in its text.

    At the top, in the body of a function, for types only. `amp/__init__.py` is left
    out: it names what is public, loads it when it is asked for, and is imported by all.
    """
    modules = modules_in(root)
    modules.pop("amp.__init__", None)
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            for imported in _names(node):
                target = _module(imported, modules)
                if target and target != name:
                    found[name].add(target)
    return found


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are written in full"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(imported: str, modules: Container[str]) -> str:
    """The module that an imported name is, or that it is in; "" if not of ours."""
    while imported:
        for name in (imported, f"{imported}.__init__"):
            if name in modules:
                return name
        imported = imported.rpartition(".")[0]
    return ""


def circle(needs: Mapping[str, Set[str]]) -> set[str]:
    """Those on a circle, or on a way from one circle to another; empty if none is."""
    left = {name: of & needs.keys() for name, of in needs.items()}
    while True:
        needed = {name for of in left.values() for name in of}
        kept = {n: of & needed for n, of in left.items() if of and n in needed}
        if kept == left:
            return set(left)
        left = {name: of & kept.keys() for name, of in kept.items()}


def room(name: str) -> str:
    """The folder that a module is in, or the module itself if it is beside folders."""
    return ".".join(name.split(".")[:3]).removesuffix(".__init__")


def against(package: str, order: tuple[str, ...], root: pathlib.Path) -> set[str]:
    """The imports in a package that point from a room to a later one, or to nowhere."""
    place = {f"{package}.{name}": index for index, name in enumerate(order)}
    return {
        f"{name} -> {imported}"
        for name, needs in arrows(root).items()
        for imported in needs
        if room(name).startswith(f"{package}.") and room(imported) != room(name)
        if room(imported).startswith(f"{package}.")
        if place.get(room(imported), 99) >= place.get(room(name), -1)
    }


def folders(root: pathlib.Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, needs in arrows(root).items():
        others = {room(imported) for imported in needs} - {room(name)}
        found.setdefault(room(name), set()).update(others)
    return found


def test_the_rooms_of_the_rewriter_import_only_from_those_before():
    assert against("amp.graph_rewrite", REWRITER, ROOT) == set()


def test_the_rooms_of_the_integration_import_only_from_those_before():
    assert against("amp.integration", INTEGRATION, ROOT) == set()


@pytest.mark.parametrize("name", MODULES)
def test_no_import_stands_in_a_function(name):
    inside = {
        ast.unparse(node)
        for function in ast.walk(tree(MODULES[name]))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert not inside, "what may not be imported early is imported by name (importlib)"


def test_every_room_has_its_place_in_the_order():
    for package, order in (("graph_rewrite", REWRITER), ("integration", INTEGRATION)):
        rooms = {room(n) for n in MODULES if n.startswith(f"amp.{package}.")}
        names = {name.rpartition(".")[2] for name in rooms} - {package}
        assert names <= set(order)


def test_no_circle_of_files():
    assert circle(arrows(ROOT)) == set()


def test_no_circle_of_folders():
    assert circle(folders(ROOT)) == set()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("from amp.graph_rewrite.apply import link", True),
        ("def f():\n    import amp.graph_rewrite.apply.link", True),
        (
            "if TYPE_CHECKING:\n    from amp.graph_rewrite.apply.link import Linked",
            True,
        ),
        ("from amp.graph_rewrite.graph import ir", False),
        ("from amp.graph_rewrite.candidates import other", False),
    ],
    ids=["top", "function", "types", "before", "beside"],
)
def test_an_import_from_a_later_room_is_seen_wherever_it_stands(tmp_path, text, seen):
    rewriter = tmp_path / "amp/graph_rewrite"
    for name in ("graph/ir.py", "apply/link.py", "candidates/other.py"):
        (rewriter / name).parent.mkdir(parents=True)
        (rewriter / name).write_text("")
    (rewriter / "candidates/one.py").write_text(text)
    found = against("amp.graph_rewrite", REWRITER, tmp_path)
    arrow = "amp.graph_rewrite.candidates.one -> amp.graph_rewrite.apply.link"
    assert found == ({arrow} if seen else set())


def test_a_room_without_a_place_is_seen(tmp_path):
    for name in ("graph/ir.py", "attic/old.py"):
        path = tmp_path / "amp/graph_rewrite" / name
        path.parent.mkdir(parents=True)
        path.write_text("")
    path.write_text("from amp.graph_rewrite.graph import ir")
    assert against("amp.graph_rewrite", REWRITER, tmp_path)


def test_a_circle_is_seen_also_if_a_function_hides_it(tmp_path):
    (tmp_path / "amp/a").mkdir(parents=True)
    (tmp_path / "amp/a/one.py").write_text("def f():\n    from amp.a.two import x")
    (tmp_path / "amp/a/two.py").write_text("from amp.a import one\nx = one")
    (tmp_path / "amp/a/free.py").write_text("from amp.a import one")
    assert {"amp.a.one", "amp.a.two"} <= circle(arrows(tmp_path))


@pytest.mark.parametrize("name", [n for n in MODULES if n.endswith(".__init__")])
def test_a_folder_says_what_lives_there_what_may_not_and_its_neighbours(name):
    package = name.split(".")[1]
    if package not in ("graph_rewrite", "integration") or name.count(".") < 3:
        return
    text = ast.get_docstring(tree(MODULES[name]))
    assert text, "no docstring"
    lives, *rest = [line for line in text.splitlines() if line]
    assert lives.endswith(".")
    assert FORBIDS.search(rest[0])
    assert "Before it:" in rest[1]
    assert "fter it:" in rest[1]


def test_only_phases_knows_the_whole_pipeline():
    rooms = ("normalize", "candidates", "assign", "apply", "fusion")
    phases = {f"amp.graph_rewrite.{name}" for name in rooms}
    needs = folders(ROOT)
    assert {name for name in needs if phases <= needs[name]} == {
        "amp.graph_rewrite.phases"
    }
    text = (ROOT / "amp/graph_rewrite/phases.py").read_text()
    assert len(text.splitlines()) < 100


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
    for name in ("errors", "policy", "loss_scaling.scale", "loss_scaling.scale_text"):
        assert f"amp.{name}" not in importers("tensorflow")
    assert not {n for n in importers("tensorflow") if n.startswith("amp.cli")}


def test_only_the_command_prints_and_exits():
    for name, path in MODULES.items():
        calls = {
            ast.unparse(node.func)
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Call)
        }
        if not name.startswith(("amp.cli.", "amp.__main__")):
            assert not calls & {"print", "sys.exit", "exit", "os._exit"}, name


def test_models_and_the_training_script_do_not_know_the_plugin():
    for path in [*ROOT.glob("models/*.py"), ROOT / "examples/train_digits.py"]:
        found = {n.partition(".")[0] for n in imports(path, everywhere=True)}
        assert "amp" not in found, path.name
        code = ast.unparse(tree(path))
        assert not re.search(r"bfloat16|float16|mixed_precision", code), path.name


def changed_by_import(text: str) -> list[str]:
    """What a file sets of other modules when it is imported."""
    assigned = (n for n in ast.parse(text).body if isinstance(n, ast.Assign))
    targets = (target for node in assigned for target in node.targets)
    return [ast.unparse(t) for t in targets if isinstance(t, ast.Attribute)]


def test_importing_a_file_of_tests_changes_no_other_module():
    """It would change it for all tests that come later in the same process."""
    assert changed_by_import("import m\nm.PERIOD = 1e6") == ["m.PERIOD"]
    program = ROOT / "tests/support/small_suite.py"  # runs in processes of its own
    for path in {*ROOT.glob("tests/**/*.py")} - {program}:
        text = path.read_text()
        assert not changed_by_import(text), path.name
        assert "import small_suite" not in text or path == pathlib.Path(__file__)


def marks_of_file(text: str) -> int:
    """How often a file says what marks all of its tests; the last time counts."""
    assigned = (n for n in ast.parse(text).body if isinstance(n, ast.Assign))
    return sum(ast.unparse(n.targets[0]) == "pytestmark" for n in assigned)


def test_no_file_of_tests_takes_its_own_marks_back():
    assert marks_of_file("pytestmark = []\nx = 1\npytestmark = x") == 2
    twice = {p for p in ROOT.glob("tests/**/*.py") if marks_of_file(p.read_text()) > 1}
    assert not twice


def test_files_are_not_called_utils():
    rooms = ("amp", "benchmarks", "convergence", "examples", "models")
    names = {p.stem for room in rooms for p in (ROOT / room).glob("**/*.py")}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


def test_the_table_of_hooks_names_every_name_that_is_wrapped():
    design = (ROOT / "docs/design.md").read_text()
    table = design.partition("| hooks in | wrapped names |")[2].partition("\n\n")[0]
    columns = [row.split("|")[2] for row in table.splitlines() if row.startswith("|")]
    quoted = re.findall(r"`([\w.]+)`", " ".join(columns))
    named = {text.rpartition(".")[2] for text in quoted}
    keys = [*install.DECORATORS, *install.KERAS_DECORATORS]
    keys += [*install.TF_KERAS_DECORATORS, *install.KERAS_MULTI_DECORATORS]
    assert {key.rpartition(".")[2] for key in keys} <= named


def test_the_map_of_files_names_every_room():
    chart = (ROOT / "docs/files.md").read_text()
    rooms = [f"amp/{room}/" for room in ROOMS]
    rooms += ["models/", "examples/", "tests/", "docs/", "benchmarks/", "convergence/"]
    rooms += ["amp/policy.py", "amp/errors.py", ".ci/"]
    for room in rooms:
        assert room in chart, room
    found = {p.parent.name for p in ROOT.glob("amp/*/__init__.py")}
    assert found == set(ROOMS)
    design = (ROOT / "docs/design.md").read_text()
    for name, path in MODULES.items():
        if path.stem != "__init__":
            where = section(design, name.split(".")[1])
            assert re.search(rf"`(\w+/)?{path.stem}\b", where), path.name


def section(design: str, room: str) -> str:
    """What the design page says under the heading of a room; else all of it."""
    parts = re.split(r"^## ", design, flags=re.MULTILINE)
    found = [part for part in parts if f"`amp/{room}/`" in part.partition("\n")[0]]
    return found[0] if found else design


def test_the_table_of_phases_names_every_step_in_order():
    design = (ROOT / "docs/design.md").read_text()
    table = design.partition("| steps | folder or file |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    named = [step.strip() for cell in cells for step in cell.split(";")]
    lists = (phases.BEGIN, phases.PREPARE, phases.DECIDE, phases.BUILD, phases.CHECK)
    lists += (phases.SECOND, phases.FUSE, phases.REPORT)
    assert named == [step.name for steps in lists for step in steps]


def test_the_table_of_attributes_names_every_mark_of_nodes():
    design = (ROOT / "docs/design.md").read_text()
    table = design.partition("| attribute | written by |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(_amp_\w+)`", table, flags=re.MULTILINE)
    held = {v for v in vars(ir).values() if isinstance(v, str) and v[:5] == "_amp_"}
    assert sorted(named) == sorted(held)
