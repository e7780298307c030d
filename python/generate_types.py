"""Generates `proctor_client/wire_types.py` from `schemas/openapi.json`.

`python3 python/generate_types.py` writes the file. With `--check` it writes nothing, and exits with 1 if the file is
out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
OPENAPI = ROOT.parent / "schemas" / "openapi.json"
OUTPUT = ROOT / "proctor_client" / "wire_types.py"

# The operations whose requests and answers the client uses.
OPERATIONS = [
    ("/healthz", "get"),
    ("/v1/runs", "post"),
    ("/v1/runs/{id}", "get"),
    ("/v1/runs/{id}", "delete"),
    ("/v1/sql/verify", "post"),
    ("/v1/sql/run", "post"),
    ("/v1/sql/schema", "post"),
    ("/v1/sql/ask", "post"),
]
# The types that no operation refers to directly.
EXTRA_TYPES = ["Problem"]
# Types whose fields are not generated: their values are dictionaries. An event contains plans and evidence, whose
# schemas would triple the size of the file.
OPAQUE_TYPES = ["LoggedEvent", "Code"]

HEADER = '''"""The requests and answers of the daemon.

`generate_types.py` generates this file from `schemas/openapi.json`. Do not edit it.
"""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union

'''
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
WIDTH = 120

Schema = dict[str, Any]


class Generator:
    """Converts the schemas that are reachable from the operations of the client."""

    def __init__(self, document: Schema) -> None:
        self.document = document
        self.schemas: dict[str, Schema] = document["components"]["schemas"]
        self.reachable: set[str] = set()

    def generate(self) -> str:
        for schema in self.operation_schemas():
            self.visit(schema)
        for name in EXTRA_TYPES:
            self.visit({"$ref": f"#/components/schemas/{name}"})
        names = sorted(self.reachable)
        classes = [name for name in names if is_class(self.schemas[name]) and name not in OPAQUE_TYPES]
        aliases = self.in_order_of_use([name for name in names if name not in classes])
        text = HEADER
        # An alias refers to classes when the module is imported, so the classes that it needs come first.
        plain = [name for name in aliases if not self.needs_classes(name, set(classes))]
        text += "".join(self.alias(name) for name in plain)
        text += "".join(self.typed_dict(name) for name in classes)
        rest = [name for name in aliases if name not in plain]
        if rest:
            text += "\n\n" + "".join(self.alias(name) for name in rest)
        return text

    def operation_schemas(self) -> list[Schema]:
        found: list[Schema] = []
        for path, method in OPERATIONS:
            operation = self.document["paths"].get(path, {}).get(method)
            if operation is None:
                continue
            contents = [operation.get("requestBody", {}).get("content", {})]
            contents += [answer.get("content", {}) for answer in operation["responses"].values()]
            found += [kind["schema"] for content in contents for kind in content.values() if "schema" in kind]
        return found

    def visit(self, schema: Any) -> None:
        if isinstance(schema, list):
            for part in schema:
                self.visit(part)
        elif isinstance(schema, dict):
            name = reference(schema)
            if name is not None and name not in self.reachable:
                self.reachable.add(name)
                if name not in OPAQUE_TYPES:
                    self.visit(self.schemas[name])
            # The values of a mapping are references as plain strings.
            self.visit([value for key, value in schema.items() if key != "discriminator"])

    def in_order_of_use(self, names: list[str]) -> list[str]:
        ordered: list[str] = []

        def add(name: str) -> None:
            if name in ordered or name not in names:
                return
            for used in self.uses(name):
                add(used)
            ordered.append(name)

        for name in names:
            add(name)
        return ordered

    def needs_classes(self, name: str, classes: set[str]) -> bool:
        return any(other in classes or self.needs_classes(other, classes) for other in self.uses(name))

    def uses(self, name: str) -> list[str]:
        return [] if name in OPAQUE_TYPES else references(self.schemas[name])

    def alias(self, name: str) -> str:
        schema = self.schemas[name]
        kind = opaque_type(schema) if name in OPAQUE_TYPES else self.type_of(schema)
        return comment(schema) + broken(f"{name} = {kind}") + "\n"

    def typed_dict(self, name: str) -> str:
        schema = self.schemas[name]
        fields: Schema = schema["properties"]
        required = [field for field in fields if field in schema.get("required", [])]
        optional = [field for field in fields if field not in required]
        # `Required` and `NotRequired` do not exist before Python 3.11.
        parts = []
        base = "TypedDict"
        if required and optional:
            parts.append(f"\n\nclass _{name}Required(TypedDict):\n" + self.fields(fields, required))
            base = f"_{name}Required"
        total = ", total=False" if optional else ""
        parts.append(f"\n\nclass {name}({base}{total}):\n" + docstring(schema) + "\n")
        parts.append(self.fields(fields, optional or required))
        return "".join(parts)

    def fields(self, fields: Schema, names: list[str]) -> str:
        lines = []
        for name in names:
            if not name.isidentifier():
                raise SystemExit(f"error: the field `{name}` is not a Python identifier")
            lines.append(comment(fields[name], "    ") + f"    {name}: {self.type_of(fields[name])}\n")
        return "".join(lines)

    def type_of(self, schema: Any) -> str:
        if schema is True or not isinstance(schema, dict):
            return "Any"
        name = reference(schema)
        if name is not None:
            return name
        if "const" in schema:
            return f"Literal[{literal(schema['const'])}]"
        if "enum" in schema:
            return f"Literal[{', '.join(literal(value) for value in schema['enum'])}]"
        for key in ("oneOf", "anyOf"):
            if key in schema:
                return self.union([self.type_of(part) for part in schema[key]])
        if "allOf" in schema:
            if len(schema["allOf"]) != 1:
                raise SystemExit("error: `allOf` of several schemas is not supported")
            return self.type_of(schema["allOf"][0])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return self.union([self.type_of({**schema, "type": kind}) for kind in kinds])
        if kinds == "array":
            if "prefixItems" in schema:
                return f"list[{self.union([self.type_of(part) for part in schema['prefixItems']])}]"
            return f"list[{self.type_of(schema.get('items', True))}]"
        if kinds == "object":
            values = schema.get("additionalProperties") or next(
                iter(schema.get("patternProperties", {}).values()), True
            )
            return f"dict[str, {self.type_of(values)}]"
        return SCALARS.get(kinds, "Any") if isinstance(kinds, str) else "Any"

    def union(self, types: list[str]) -> str:
        unique = list(dict.fromkeys(types))
        if "Any" in unique:
            return "Any"
        literals = [kind for kind in unique if kind.startswith("Literal[")]
        if len(literals) > 1:
            values = ", ".join(kind[len("Literal[") : -1] for kind in literals)
            unique = [f"Literal[{values}]", *(kind for kind in unique if kind not in literals)]
        known = [kind for kind in unique if kind != "None"]
        inner = known[0] if len(known) == 1 else f"Union[{', '.join(known)}]"
        return f"Optional[{inner}]" if len(known) < len(unique) else inner


def opaque_type(schema: Schema) -> str:
    return "str" if "enum" in schema else "dict[str, Any]"


def broken(line: str) -> str:
    """Breaks the line of an alias after each of its parts, if the line is too long."""
    if len(line) <= WIDTH:
        return line
    start, rest = line.split("[", 1)
    parts = rest.rsplit("]", 1)[0].split(", ")
    return f"{start}[\n" + "".join(f"    {part},\n" for part in parts) + "]"


def is_class(schema: Schema) -> bool:
    return schema.get("type") == "object" and bool(schema.get("properties"))


def reference(schema: Schema) -> str | None:
    name = schema.get("$ref")
    return str(name).rsplit("/", 1)[-1] if name else None


def references(schema: Any) -> list[str]:
    """Returns the names to which a schema refers itself."""
    if isinstance(schema, list):
        return [name for part in schema for name in references(part)]
    if not isinstance(schema, dict):
        return []
    name = reference(schema)
    nested = [value for key, value in schema.items() if key != "discriminator"]
    return ([name] if name else []) + references(nested)


def literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def description(schema: Any) -> list[str]:
    text: str = schema.get("description", "") if isinstance(schema, dict) else ""
    # The values of an enum are described in a list, which the document repeats.
    text = text.split("\n- `", 1)[0]
    return [line.strip() for line in text.splitlines() if line.strip()]


def wrapped(lines: list[str], indent: str, prefix: str) -> list[str]:
    width = WIDTH - len(indent) - len(prefix)
    words = " ".join(lines).split()
    result: list[str] = []
    for word in words:
        if result and len(result[-1]) + 1 + len(word) <= width:
            result[-1] += " " + word
        else:
            result.append(word)
    return result


def comment(schema: Any, indent: str = "") -> str:
    return "".join(f"{indent}# {line}\n" for line in wrapped(description(schema), indent, "# "))


def docstring(schema: Schema) -> str:
    lines = wrapped(description(schema), "    ", '"""' * 2) or ["An object of the interface."]
    if len(lines) == 1:
        return f'    """{lines[0]}"""\n'
    return '    """' + "\n    ".join(lines) + '\n    """\n'


def main(arguments: list[str]) -> int:
    text = Generator(json.loads(OPENAPI.read_text(encoding="utf-8"))).generate()
    if arguments == ["--check"]:
        if not OUTPUT.is_file() or OUTPUT.read_text(encoding="utf-8") != text:
            print("error: proctor_client/wire_types.py differs from schemas/openapi.json", file=sys.stderr)
            print("hint: run `python3 python/generate_types.py`", file=sys.stderr)
            return 1
        return 0
    if arguments:
        print("usage: generate_types.py [--check]", file=sys.stderr)
        return 2
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
