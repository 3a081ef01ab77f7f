"""Finds places where a change to Rust code still compiles and a test ought to notice it."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

try:
    import tree_sitter_rust
    from tree_sitter import Language, Parser
except ImportError:
    raise SystemExit("error: needs a Rust parser; run: pip install tree-sitter tree-sitter-rust") from None

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="}
LOGIC = {"&&": "||", "||": "&&"}
METHODS = {
    "min": "max", "any": "all", "is_some": "is_none", "is_ok": "is_err", "first": "last",
    "starts_with": "ends_with", "floor": "ceil", "saturating_sub": "saturating_add",
}  # fmt: skip
METHODS |= {b: a for a, b in METHODS.items()}
# How often to draw an operator: literals and statements are by far the most frequent in the text.
WEIGHTS = {"comparison": 4, "arithmetic": 4, "logic": 3, "condition": 3, "literal": 3, "method": 3, "statement": 3}

# Digits and suffix. `0x1f32` has none: its letters are digits.
INTEGER = re.compile(r"(0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|[0-9][0-9_]*)([ui](?:8|16|32|64|128|size)|f32|f64)?")

# Code for other machines, code that is not part of the product, and code of the tests.
SKIPPED_FILES = ["/cuda/", "/metal", "/gpu.rs", "/tests.rs", "/tests/", "/build.rs"]
# No expression inside these runs at run time.
SKIPPED_NODES = {
    "attribute_item", "inner_attribute_item", "macro_definition", "macro_invocation", "const_item", "static_item",
    "use_declaration", "parameters", "closure_parameters", "enum_item", "struct_item", "type_item", "array_type",
    "type_arguments", "generic_type", "line_comment", "block_comment", "const_block", "where_clause", "type_parameters",
}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """One change: bytes `start..end` of `file` become `mutated`."""

    crate: str
    file: str
    start: int
    end: int
    line: int
    operator: str
    original: str
    mutated: str

    def text(self, number):
        """The replacement: both versions, and the switch between them."""
        if self.operator == "statement":
            return f"if !crate::mutant_is({number}) {{ {self.original} }}"
        return f"(if crate::mutant_is({number}) {{ {self.mutated} }} else {{ {self.original} }})"


def crates(root):
    """The folders of crates/ that have functions: page-module only holds files."""
    folders = (path.parent for path in (root / "crates").glob("*/Cargo.toml"))
    return sorted(folder.name for folder in folders if any("fn " in file.read_text() for file in folder.rglob("src/**/*.rs")))


def sources(root, crate):
    files = sorted((root / "crates" / crate / "src").rglob("*.rs"))
    relative = [str(f.relative_to(root)) for f in files]
    return [f for f in relative if not any(part in f"/{f}" for part in SKIPPED_FILES)]


def is_off(attribute):
    """Whether an attribute excludes the item from the tests' build, or from everything but the tests."""
    text = attribute.text.decode().replace(" ", "")
    if text == "#[test]":
        return True
    on = ["#[cfg(unix)]", '#[cfg(feature="hub")]', "#[cfg(not(test))]", '#[cfg(target_arch="x86_64")]']
    return text.startswith("#[cfg(") and text not in on


def named(node, field):
    child = node.child_by_field_name(field)
    return child.text.decode() if child else ""


def parts(node):
    """The children that hold code which runs."""
    off = False
    for child in node.children:
        if child.type == "attribute_item":
            off = off or is_off(child)
            continue
        if child.type in ("line_comment", "block_comment"):
            continue
        was_off, off = off, False
        if was_off or child.type in SKIPPED_NODES or not child.is_named:
            continue
        if child.type == "function_modifiers" or (child.type == "function_item" and is_const(child)):
            continue
        field = node.field_name_for_child(node.children.index(child))
        if field in ("pattern", "type", "return_type", "length", "type_arguments") and child.type != "match_pattern":
            continue
        if node.type == "field_expression" and field == "field":
            continue
        if child.type == "match_pattern":
            guard = child.child_by_field_name("condition")
            if guard is not None:
                yield guard
            continue
        yield child


def is_const(function):
    return any(c.type == "function_modifiers" and b"const" in c.text for c in function.children)


def changes(node):
    """(operator, mutated text) of this node only, without its children."""
    text = node.text.decode()
    if node.type in ("binary_expression", "compound_assignment_expr"):
        operator = named(node, "operator")
        left, right = named(node, "left"), named(node, "right")
        for name, table in [("comparison", COMPARISONS), ("arithmetic", ARITHMETIC), ("logic", LOGIC)]:
            if operator in table and "let " not in text:
                yield name, f"{left} {table[operator]} {right}"
    elif node.type == "unary_expression" and text.startswith("!"):
        yield "logic", text[1:]
    elif node.type == "boolean_literal":
        yield "literal", "false" if text == "true" else "true"
    elif node.type == "integer_literal":
        yield "literal", next_integer(text)
    elif node.type == "call_expression":
        function = node.child_by_field_name("function")
        if function is not None and function.type == "field_expression":
            method = function.child_by_field_name("field")
            if method.text.decode() in METHODS:
                at = method.start_byte - node.start_byte
                raw, name = node.text, METHODS[method.text.decode()]
                yield "method", (raw[:at] + name.encode() + raw[at + len(method.text) :]).decode()
    elif node.type == "expression_statement" and text.endswith(";"):
        inner = node.named_children[0].type if node.named_children else ""
        if inner in ("call_expression", "try_expression", "assignment_expression"):
            yield "statement", ""


def next_integer(text):
    digits, suffix = INTEGER.fullmatch(text).groups()
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
    return f"{int(digits.replace('_', ''), base) + 1}{suffix or ''}"


def of_file(root, crate, file):
    """Every site of a file."""
    parser = Parser(Language(tree_sitter_rust.language()))
    tree = parser.parse((root / file).read_bytes())
    found, todo = [], [tree.root_node]
    while todo:
        node = todo.pop()
        for operator, mutated in changes(node):
            found.append(site(crate, file, node, operator, mutated))
        if node.type == "if_expression":
            condition = node.child_by_field_name("condition")
            if condition.type not in ("let_chain", "let_condition") and not condition.text.startswith(b"!"):
                found.append(site(crate, file, condition, "condition", f"!({condition.text.decode()})"))
        todo.extend(parts(node))
    return found


def site(crate, file, node, operator, mutated):
    line = node.start_point[0] + 1
    return Site(crate, file, node.start_byte, node.end_byte, line, operator, node.text.decode(), mutated)


def lines_of_code(root, crate):
    """Lines that are not empty, not comments, and not in a `mod tests` at a file's end."""
    count = 0
    for file in sources(root, crate):
        text = (Path(root) / file).read_text().split("#[cfg(test)]\nmod tests {")[0]
        count += sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))
    return count


class Pool:
    """The sites of one crate, drawn at random: first the operator by its weight, then the place."""

    def __init__(self, root, crate, seed):
        self.random = random.Random(f"{seed} {crate}")
        self.sites = {operator: [] for operator in WEIGHTS}
        for file in sources(root, crate):
            for found in of_file(root, crate, file):
                self.sites[found.operator].append(found)
        for sites in self.sites.values():
            sites.sort(key=lambda s: (s.file, s.start, s.end, s.mutated))

    def draw(self, taken):
        """A site that overlaps none of `taken`, and is never drawn again. `None` if none is left."""
        while True:
            operators = [o for o in WEIGHTS if self.sites[o]]
            if not operators:
                return None
            operator = self.random.choices(operators, [WEIGHTS[o] for o in operators])[0]
            sites = self.sites[operator]
            one = sites.pop(self.random.randrange(len(sites)))
            if not any(one.file == t.file and one.start < t.end and t.start < one.end for t in taken):
                return one
