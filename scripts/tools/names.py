"""Finds names that a script takes from another script, where that one has no such name."""

import ast
from pathlib import Path


def defined(tree):
    """The names at the top of a file, those inside its `if`, `try` and `with` among them."""
    found, todo = set(), list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found.add(node.name)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(name.asname or name.name).split(".")[0] for name in node.names}
            continue
        found |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return found


class Scripts:
    """The Python files of a folder, and what each defines."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.trees = {path: ast.parse(path.read_text(), str(path)) for path in sorted(self.folder.rglob("*.py"))}
        self.names = {path: defined(tree) for path, tree in self.trees.items()}

    def module(self, place, dotted):
        """The file of a module as seen from the folder `place`; `None` for one that is not among the scripts."""
        for base in {place: None, self.folder: None}:
            base = base.joinpath(*dotted.split(".")) if dotted else base
            if file := next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path in self.trees), None):
                return file
        return None

    def imported(self, path, node):
        """What an import statement of `path` brings: (name here, module's file, name there or None for the module itself)."""
        for name in node.names:
            if isinstance(node, ast.Import):
                if file := self.module(path.parent, name.name):
                    yield name.asname or name.name, file, None
                continue
            place = path.parents[node.level - 1] if node.level else path.parent
            dotted = node.module or ""
            if file := self.module(place, f"{dotted}.{name.name}".strip(".")):
                yield name.asname or name.name, file, None
            elif file := self.module(place, dotted):
                yield name.asname or name.name, file, name.name

    def missing(self):
        """Each name that is not there, with its place."""
        for path, tree in self.trees.items():
            modules = {}
            for node in ast.walk(tree):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    for here, file, there in self.imported(path, node):
                        if there is None:
                            modules[here] = file
                        elif there not in self.names[file]:
                            yield f"{path}:{node.lineno}: {file} has no {there}"
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    file = modules.get(node.value.id)
                    if file and node.attr not in self.names[file] | {"__file__", "__name__", "__doc__"}:
                        yield f"{path}:{node.lineno}: {file} has no {node.attr}"

    def unused(self, tools):
        """The modules that no tool, no module of one, and no file of tests imports."""
        reached, todo = set(), [path for path in self.trees if path in tools or path.name.startswith("test_")]
        while todo:
            path = todo.pop()
            if path in reached:
                continue
            reached.add(path)
            for node in ast.walk(self.trees[path]):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    todo += [file for _, file, _ in self.imported(path, node)]
        return [path for path in self.trees if path not in reached and path.name != "__init__.py"]
