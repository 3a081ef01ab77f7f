"""The modules of a crate: what each defines, and what it imports from which file.

Read from the text alone, without the compiler: enough for `use` lines, paths and re-exports. Macros are not expanded,
and methods are not looked for.
"""

import re

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'|'\w+|"""
    r"""(?:r\#)?[A-Za-z_]\w*|\d\w*|::|\.\.=?|\S""",
    re.S,
)
KINDS = {"fn", "struct", "enum", "trait", "type", "const", "static", "union"}
OPEN, CLOSE = set("([{"), set(")]}")


def end_of_group(tokens, i):
    """The index after the bracket that closes the one at `i`."""
    depth = 0
    while True:
        depth += (tokens[i] in OPEN) - (tokens[i] in CLOSE)
        i += 1
        if depth == 0:
            return i


def use_tree(tokens, prefix=()):
    """The paths in `a::{b, c as d, e::*}`, each with its local name."""
    if "{" in tokens:
        i = tokens.index("{")
        head, parts, start, depth = prefix + tuple(t for t in tokens[:i] if t != "::"), [], i + 1, 0
        for j in range(i + 1, len(tokens)):
            depth += (tokens[j] == "{") - (tokens[j] == "}")
            if (tokens[j] == "," and depth == 0) or depth < 0:
                parts.append(tokens[start:j])
                start = j + 1
                if depth < 0:
                    break
        return [leaf for part in parts if part for leaf in use_tree(part, head)]
    names = [t for t in tokens if t != "::"]
    alias = names[names.index("as") + 1] if "as" in names else None
    path = prefix + tuple(names[: names.index("as")] if alias else names)
    if path[-1] == "self":
        path = path[:-1]
    return [(path, alias or path[-1])]


def lex(file):
    tokens = (match[0] for match in TOKEN.finditer(file.read_text()))
    return [t for t in tokens if not t.startswith(("//", "/*"))]


class Module:
    """A module: its definitions, its imports with their names, and the tokens of its code."""

    def __init__(self, path, file, parent):
        self.path, self.file, self.parent = path, file, parent
        self.children, self.defined, self.uses, self.body = {}, set(), [], []

    def parse(self, tokens):
        i, tested, public = 0, False, False
        while i < len(tokens):
            token, start = tokens[i], i
            if token == "#":
                i = end_of_group(tokens, i + (2 if tokens[i + 1] == "!" else 1))
                text = "".join(tokens[start:i])
                tested = tested or text.startswith(("#[cfg(test)", "#[cfg(all(test"))
                continue
            if token == "pub":
                public, i = True, end_of_group(tokens, i + 1) if tokens[i + 1] == "(" else i + 1
                continue
            end = self.end_of_item(tokens, i)
            if not tested:
                self.item(tokens[i:end], public)
            i, tested, public = end, False, False

    @staticmethod
    def end_of_item(tokens, i):
        first = next((t for t in tokens[i:] if t in KINDS | {"use", "impl", "mod", "macro_rules"}), "")
        # These end at a semicolon, even if they contain braces; `const fn` and macros do not.
        value = first in {"const", "static", "type", "use"} and tokens[i + 1] not in {"fn", "unsafe", "!"}
        while i < len(tokens):
            if tokens[i] == ";":
                return i + 1
            if tokens[i] in OPEN:
                block, i = tokens[i] == "{", end_of_group(tokens, i)
                if block and not value:
                    return i
            else:
                i += 1
        return i

    def item(self, tokens, public):
        if tokens[0] == "use":
            self.uses += [(path, name, public) for path, name in use_tree(tokens[1:-1])]
        elif tokens[0] == "mod" and tokens[2] == ";":
            folder = self.file.parent if self.file.stem in ("mod", "lib", "main") else self.file.with_suffix("")
            file = folder / f"{tokens[1]}.rs"
            self.child(tokens[1], file if file.exists() else folder / tokens[1] / "mod.rs", None)
        elif tokens[0] == "mod":
            self.child(tokens[1], self.file, tokens[3:-1])
        elif tokens[1] == "!":
            if tokens[0] == "macro_rules":
                self.defined.add(tokens[2])
            self.body += tokens
        else:
            kind = next((i for i, t in enumerate(tokens) if t in KINDS | {"impl"}), None)
            if kind is not None and tokens[kind] == "const" and tokens[kind + 1] in KINDS | {"unsafe"}:
                kind = tokens.index("fn")
            if kind is not None and tokens[kind] != "impl":
                self.defined.add(tokens[kind + 1])
            self.body += tokens
            for i in (i for i, t in enumerate(tokens) if t == "use" and i):
                leaves = use_tree(tokens[i + 1 : tokens.index(";", i)]) if tokens[i - 1] in "{};" else []
                self.uses += [(path, name, False) for path, name in leaves]

    def child(self, name, file, tokens):
        self.children[name] = child = Module((*self.path, name), file, self)
        child.parse(lex(file) if tokens is None else tokens)

    def all(self):
        yield self
        for child in self.children.values():
            yield from child.all()

    def start(self, path):
        """The module in which a path starts, and the names after it."""
        module, i = self, 0
        if path[0] == "crate":
            while module.parent:
                module = module.parent
            i = 1
        while i < len(path) and path[i] in ("self", "super"):
            module, i = (module.parent or module) if path[i] == "super" else module, i + 1
        return module, path[i:]

    def find(self, path, seen=frozenset()):
        """The module or the (file, name) that a path names from here; None for items of other crates."""
        module, left = self.start(path)
        if not left:
            return module
        name, rest, key = left[0], left[1:], (module.path, left)
        if key in seen:
            return None
        seen = seen | {key}
        if name in module.defined and not (rest and name in module.children):
            return module.file, name
        if rest and name in module.children:
            return module.children[name].find(("self", *rest), seen)
        for target, known, _ in module.uses:
            if known == name and (found := module.find(target, seen)):
                return found.find(("self", *rest), seen) if isinstance(found, Module) and rest else found
            if known == "*" and isinstance(inner := module.find(target[:-1], seen), Module):
                if found := inner.find(("self", *left), seen):
                    return found
        return module.children.get(name)

    def imports(self):
        """Each (file, name) that this module imports."""
        for path, known, public in self.uses:
            if known == "*":
                inner = self.find(path[:-1])
                yield from (inner.find(("self", n)) for n in self.bare() if isinstance(inner, Module))
            # The root of a crate, or a file that defines nothing, only hands names on.
            elif not public or known in self.bare() or (self.parent and self.defined):
                yield self.find(path)
        i = 0
        while i < len(self.body) - 1:
            path = [self.body[i]]
            while i + 2 < len(self.body) and self.body[i + 1] == "::" and self.body[i + 2].isidentifier():
                path.append(self.body[i + 2])
                i += 2
            if len(path) > 1:
                yield self.find(tuple(path))
            i += 1

    def bare(self):
        """The names that the code uses without a path."""
        around = zip([""] + self.body, self.body, self.body[1:] + [""])
        return {t for before, t, after in around
                if t.isidentifier() and before not in {"::", ".", "fn"} and (t[0].isupper() or after in {"(", "!"})}  # fmt: skip
