"""`refusal`: why a policy's `allow` may not name an op that can never be 16-bit.

Asked where a policy is checked and where it is explained what would change a node.
Facts of op types only: kernels and devices are not looked at, and no graph may enter.
"""

from __future__ import annotations

import functools

from amp.graph_rewrite.graph import ir, op_schema
from amp.graph_rewrite.ops import op_table, structure


@functools.cache
def refusal(op: str) -> str:
    """Why no node of a registered op may be 16-bit, whatever the policy says.

    1. A Python function returns the types that it was written for.
    2. An op that calls functions has the types of their arguments and results.
    3. What a variable, a queue, a data set or a file holds has the type it has.
    4. An op none of whose type attributes may be float16 or bfloat16.

    Returns:
      The reason as a sentence about "it"; "" for an op that may be allowed, and for all
      that are on the white-list.
    """
    row, schema = op_table.TABLE.get(op), op_schema.schema(op)
    if schema is None or (row is not None and row.role is not op_table.Role.KEEP):
        return ""
    ports = (*schema.inputs, *schema.outputs)
    if op in structure.PYTHON:  # Case 1
        return "it runs Python, which returns the types that it was written for"
    if op_schema.calls_functions(op):  # Case 2
        return "it calls functions, which settle its types"
    if op in structure.AGREED or any(p.is_ref or p.type in ir.HANDLES for p in ports):
        return "what it takes or gives has a type that is settled elsewhere"  # Case 3
    attrs = {p.type_attr or p.list_attr for p in ports} - {""}
    if not any(op_schema.accepts(op, {a: t}) for a in attrs for t in ir.LOW):  # Case 4
        return "none of its types may be 16-bit"
    return ""
