"""What `nox -s docs` adds to docs/ (a hook of MkDocs, and an extension of the reader of docstrings).

Pages that stand elsewhere in the repository (READMEs, SPECs...) become pages of the site, with their links.
The pages of the documents, of the APIs and of tuned numbers are written off the sources: nothing is imported.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("stagewire", "absint", "bytecap", "aotgrad", "primops", "loopir", "codegen", "stagefold")

MOVED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    **{f"packages/{name}/README.md": f"packages/{name}.md" for name in PACKAGES},
    "packages/primops/SPEC.md": "packages/primops_spec.md",
    "packages/loopir/SPEC.md": "packages/loopir_spec.md",
}
"""Pages that stand outside of docs/, and where they are in the site."""

FOLDERS = {
    **{f"packages/{name}": f"packages/{name}.md" for name in PACKAGES},
    "docs": "index.md",
    "docs/README.md": "index.md",
}
"""Links to folders that have a page."""

DOCUMENTS = {
    "capture": ("Capture", "TGC", "bytecap", "bytecap.interpret"),
    "grad": ("Grad", "TGVB", "aotgrad", "aotgrad.interpret"),
    "prim": ("Prim", "TGVBP", "primops, then partition", "primops.interpret"),
    "loop": ("Loop", "TBLK", "loopir", "loopir.interpret"),
    "program": ("Program", "TBR", "codegen", "codegen.load"),
}
"""Module of stagewire -> name of the document, letters of its constraints, who writes it, its meaning."""


def on_files(files: Files, config: Any) -> Files:
    """Add what stands elsewhere, and what is generated."""
    for source, page in MOVED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for name in DOCUMENTS:
        files.append(File.generated(config, f"ir/{name}.md", content=document_page(name)))
    for name in PACKAGES:
        files.append(File.generated(config, f"api/{name}.md", content=api_page(name)))
    files.append(File.generated(config, "tuned_numbers.md", content=tuned_numbers_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has the pages; those to other files of the repository become text."""
    at = page.file.src_uri
    source = {site: path for path, site in MOVED.items()}.get(at, f"docs/{at}")

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        path, mark, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = MOVED.get(path) or FOLDERS.get(path)
        if found is None and path.startswith("docs/") and path.endswith(".md"):
            found = path.removeprefix("docs/")
        if found is None:
            return text if text.startswith("`") else f"{text} (`{path}`)"
        return f"[{text}]({posixpath.relpath(found, posixpath.dirname(at) or '.')}{mark}{anchor})"

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    return "".join(
        part if part.startswith("```") else re.sub(r"\[([^\]\n]+)\]\(([^)\s]+)\)", link, part) for part in parts
    )


def docstring(package: str, module: str) -> str:
    """The docstring of a module."""
    path = ROOT / "packages" / package / "src" / package / f"{module}.py"
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def constraint_table(letters: str) -> str:
    """The rows of stagewire's README on the constraints whose labels begin with these letters."""
    readme = (ROOT / "packages" / "stagewire" / "README.md").read_text()
    rows = re.findall(rf"^\| [{letters}]\d+ \|.*$", readme, re.MULTILINE)
    return "\n".join(["| label | what holds |", "|---|---|", *rows])


def document_page(module: str) -> str:
    """One document: its grammar, its constraints, its types."""
    name, constraints, written_by, meaning = DOCUMENTS[module]
    ops = {
        "prim": "Its calls are [the prims](../packages/primops_spec.md) and operators of ATen.\n\n",
        "loop": "Its statements are [the ops of loops](../packages/loopir_spec.md).\n\n",
    }.get(module, "")
    return f"""# {name}

Written by {written_by}; its meaning is `{meaning}`. The [walk through one op](../one_op.md) shows one.

```text
{docstring("stagewire", module)}
```

{ops}## What makes it valid

`stagewire.verify` checks these, and an error names the label. Calls of ops are checked against their records.

{constraint_table(constraints)}

## Types

::: stagewire.{module}
"""


def api_page(package: str) -> str:
    """The public names of a package: its `__all__`."""
    text = (ROOT / "packages" / package / "src" / package / "__init__.py").read_text()
    tree = ast.parse(text)
    listed = [ast.literal_eval(node.value) for node in tree.body
              if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"]  # fmt: skip
    members = "".join(f"        - {name}\n" for name in sorted(listed[0])) if listed else ""
    chosen = f"    options:\n      members:\n{members}" if members else ""
    return f"# {package}\n\nWhat it does: [its page](../packages/{package}.md).\n\n::: {package}\n{chosen}"


TUNED = {"codegen.cpp.tuning": "CPU", "codegen.triton.tuning": "GPU"}


def tuned_numbers_page() -> str:
    """Every number that was chosen by a measurement, with the command that measures it again."""
    sections = [_tuned_section(module, kind) for module, kind in TUNED.items()]
    return "\n\n".join(
        ["# Tuned numbers", "A number decides what is quick, never what is right. Each names its unit, its meaning and "
         "the command that measures it again (from the root of the repository). The page is written off the sources.",
         *sections]
    ) + "\n"  # fmt: skip


def _tuned_section(module: str, kind: str) -> str:
    package, _, rest = module.partition(".")
    path = ROOT / "packages" / package / "src" / package / f"{rest.replace('.', '/')}.py"
    tree = ast.parse(path.read_text())
    commands = {node.targets[0].id: node.value.value for node in tree.body  # type: ignore[attr-defined]
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)}  # fmt: skip
    rows = ["| number | value | unit | what it is | measured by |", "|---|---|---|---|---|"]
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(
                target=ast.Name(id=name),
                value=ast.Call(func=ast.Name(id="tuned"), args=[value, unit, meaning, ast.Name(id=command)]),
            ):
                cells = (f"`{name}`", f"`{ast.unparse(value)}`", ast.literal_eval(unit), ast.literal_eval(meaning),
                         f"`python benchmarks/{commands[command]}`")  # fmt: skip
                rows.append(f"| {' | '.join(cells)} |")
    return f"## {kind}\n\n`{module}`\n\n" + "\n".join(rows)


class Docstrings(griffe.Extension):
    """Docstrings as Markdown: examples are code, and fields (`name: what it is`) are items of a list."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None and not obj.is_alias:
            shown_above = obj.path in {f"stagewire.{name}" for name in DOCUMENTS}
            obj.docstring.value = "" if shown_above else markdown_of(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The docstring of a package."""
        if pkg.docstring is not None:
            pkg.docstring.value = markdown_of(pkg.docstring.value)


def markdown_of(text: str) -> str:
    """A docstring of ours in Markdown.

    >>> print(markdown_of("Adds.\\n\\nx, y: numbers\\n\\n>>> add(1, 2)\\n3"))
    Adds.
    <BLANKLINE>
    * `x, y`: numbers
    <BLANKLINE>
    ```pycon
    >>> add(1, 2)
    3
    ```
    """
    made: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        if block.lstrip().startswith(">>>"):
            made.append(f"```pycon\n{block}\n```")
        elif "::=" in block or block.startswith("    "):
            made.append(f"```text\n{block}\n```")
        else:
            made.append(re.sub(r"^([a-z_]+(?:, [a-z_]+)*): ", r"* `\1`: ", block, flags=re.MULTILINE))
    return "\n\n".join(made)
