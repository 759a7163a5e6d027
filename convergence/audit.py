"""What results were made by: the commit, and digests of the code that decides them.

Reads source files and asks git; imports none of the code and trains nothing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# What a run is made by, besides the modules of its task and its model, and all that
# these import. The table of families is not: results hold their own row.
RUNS = ("convergence.training", "convergence.settings")
TABLES = frozenset({"convergence.families", "convergence.results"})
# What a verdict is made by: margins are frozen under these.
RULE = ("equivalence", "comparison", "gradient_rule", "dynamics", "recovery", "clauses")
RULE += ("verdict", "margins", "settings", "trivial/__init__")
# What the package makes a step of. What it made shows in the digest of the plan.
PACKAGE = ("amp/loss_scaling", "amp/integration/training", "amp/graph_rewrite")


def commit() -> str:
    """The commit of the working tree, with "-dirty" if it differs; "unknown" without.

    Results themselves do not make it differ.
    """
    told = ["describe", "--always", "--long", "--abbrev=12", "--tags"]
    found = _git(*told)
    if not found:
        return "unknown"
    outside = (":!convergence/results", ":!convergence/margins.json", ":!docs")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *outside)
    return found + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def code(task: str) -> dict[str, str]:
    """Digests of the code behind a run of a family.

    Args:
      task: its module in `convergence.tasks`.

    Returns:
      "suite": of the loop, the task, the data and the model; "package": of what scales
      losses, plans and rewrites.
    """
    modules = reached((*RUNS, f"convergence.tasks.{task}"))
    return {
        "suite": digest(map(_path, modules)),
        "package": _of_folders(PACKAGE),
    }


def rule() -> str:
    """The digest of the rule's code."""
    return digest(ROOT / "convergence" / f"{name}.py" for name in RULE)


def _of_folders(folders: Iterable[str]) -> str:
    return digest(
        path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    )


def digest(paths: Iterable[Path]) -> str:
    """Of what source files do: comments, docstrings and line breaks do not count."""
    told = [[path.relative_to(ROOT).as_posix(), _code(path)] for path in paths]
    return of(told)


def of(value: Any) -> str:
    """The digest of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _code(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[:] = body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text and isinstance(node.value.value, str)  # type: ignore[attr-defined]


def reached(roots: Iterable[str]) -> list[str]:
    """Modules of the suite and of models that these import, themselves included."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        own = name.partition(".")[0] in ("convergence", "models")
        own = own and not name.startswith("convergence.trivial")
        if own and name not in found | TABLES and _path(name).exists():
            found.add(name)
            waiting += _imports(_path(name))
    return sorted(found)


def _path(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def _imports(path: Path) -> Iterable[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
