"""How large the code is: modules, lines, the longest functions and those with the most parameters.

    python benchmarks/code_counts.py            the table
    python benchmarks/code_counts.py --all      and everything over a limit, by name

A function's length is counted without its docstring. `self` and `cls` are no parameters. Public entry points, which
take what a user may want to say by keyword, are not held to the limit on parameters.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "ridgescope"
MAX_MODULES, MAX_LINES, MAX_MODULE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 100, 18_000, 400, 60, 8


@dataclass(frozen=True)
class Function:
    """One function or method."""

    module: str
    name: str
    lines: int
    """Lines without the docstring."""
    parameters: int
    is_public: bool
    """No part of its dotted name begins with an underscore, except `__init__` and `__call__`."""

    def __str__(self) -> str:
        return f"{self.module}: {self.name} ({self.lines} lines, {self.parameters} parameters)"


def modules() -> dict[str, int]:
    """Return the number of lines of each module, by its path below the package."""
    return {str(p.relative_to(SOURCE)): len(p.read_text().splitlines()) for p in sorted(SOURCE.rglob("*.py"))}


def functions() -> Iterator[Function]:
    """Yield every function and method of the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield from _functions(ast.parse(path.read_text()), str(path.relative_to(SOURCE)), "")


def _functions(node: ast.AST, module: str, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, module, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + child.name
            arguments = child.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            count = len([n for n in names if n not in ("self", "cls")])
            parts = [p for p in name.split(".") if p not in ("__init__", "__call__")]
            public = not any(p.startswith("_") for p in parts)
            yield Function(module, name, _length(child), count, public)
            yield from _functions(child, module, f"{name}.")
        else:
            yield from _functions(child, module, prefix)


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from `def` to its end, less those of its docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return total
    return total - ((first.end_lineno or first.lineno) - first.lineno + 1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="list everything over a limit")
    everything = parser.parse_args().all
    sizes, every = modules(), list(functions())
    long_modules = {name: lines for name, lines in sizes.items() if lines > MAX_MODULE_LINES}
    long_functions = [f for f in every if f.lines > MAX_FUNCTION_LINES]
    many = [f for f in every if f.parameters > MAX_PARAMETERS]
    print("| what | count | limit |\n|---|---|---|")
    print(f"| modules | {len(sizes)} | {MAX_MODULES} |")
    print(f"| lines | {sum(sizes.values()):,} | {MAX_LINES:,} |")
    print(f"| functions and methods | {len(every):,} | |")
    print(f"| modules over {MAX_MODULE_LINES} lines | {len(long_modules)} | 0 |")
    print(f"| functions over {MAX_FUNCTION_LINES} lines | {len(long_functions)} | 0 |")
    print(f"| functions with over {MAX_PARAMETERS} parameters | {len(many)} | public entry points |")
    if everything:
        for name, lines in long_modules.items():
            print(f"{name}: {lines} lines")
        for function in (*long_functions, *many):
            print(function)


if __name__ == "__main__":
    main()
