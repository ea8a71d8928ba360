"""The arithmetic of ``variants.toml``: a safe subset of Python's expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ExpressionError, nearest

Names = Mapping[str, Any]

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
# comparison: (its function, how its failure reads)
_COMPARE: dict[type[ast.AST], tuple[Callable[[Any, Any], bool], str]] = {
    ast.Eq: (operator.eq, "!="),
    ast.NotEq: (operator.ne, "=="),
    ast.Lt: (operator.lt, ">="),
    ast.LtE: (operator.le, ">"),
    ast.Gt: (operator.gt, "<="),
    ast.GtE: (operator.ge, "<"),
    ast.In: (lambda item, items: item in items, "not in"),
    ast.NotIn: (lambda item, items: item not in items, "in"),
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max}
_ALLOWED = "integers, strings, names, + - * // %, comparisons, in (…), and, or, not, if-else, min and max"


class Expression:
    """A parsed expression over names.

    >>> Expression("max(2 * tile_m, 8) <= 64").evaluate({"tile_m": 16})
    True
    """

    __slots__ = ("_tree", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"'{text}' is not an expression: {getattr(error, 'msg', error)}") from None
        _check(self._tree, text)
        called = {id(node.func) for node in ast.walk(self._tree) if isinstance(node, ast.Call)}
        self.names = frozenset(
            node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and id(node) not in called
        )

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def evaluate(self, names: Names) -> Any:
        """The value with these names; an unknown name or a division by zero raises ExpressionError."""
        return self._value(self._tree, names)

    def failure(self, names: Names) -> str:
        """Which part of a rule that does not hold is false, with the numbers put in.

        >>> Expression("a > 0 and a * 2 <= b").failure({"a": 5, "b": 8})
        'a * 2 = 10 > b = 8 (a = 5)'
        """
        shown: set[str] = set()
        text = self._failure(self._tree, names, shown)
        used = [f"{name} = {names[name]}" for name in sorted(self.names & names.keys() - shown) if name in text]
        return f"{text} ({', '.join(used)})" if used else text

    def _value(self, tree: ast.expr, names: Names) -> Any:
        try:
            return _evaluate(tree, names)
        except (ZeroDivisionError, TypeError) as error:
            raise ExpressionError(f"'{self.text}' with {dict(names)}: {error}") from None

    def _failure(self, tree: ast.expr, names: Names, shown: set[str]) -> str:
        if isinstance(tree, ast.BoolOp):
            failing = [part for part in tree.values if not self._value(part, names)]
            failing = failing[:1] if isinstance(tree.op, ast.And) else failing
            return " and ".join(self._failure(part, names, shown) for part in failing)
        if isinstance(tree, ast.Compare):
            left = tree.left
            for op, right in zip(tree.ops, tree.comparators, strict=True):
                test, failed = _COMPARE[type(op)]
                if not test(self._value(left, names), self._value(right, names)):
                    sides = [self._side(side, names, shown) for side in (left, right)]
                    return f"{sides[0]} {failed} {sides[1]}"
                left = right
        return f"{ast.unparse(tree)} is {self._value(tree, names)}"

    def _side(self, tree: ast.expr, names: Names, shown: set[str]) -> str:
        if isinstance(tree, ast.Constant | ast.Tuple):
            return ast.unparse(tree)
        if isinstance(tree, ast.Name):
            shown.add(tree.id)
        return f"{ast.unparse(tree)} = {self._value(tree, names)}"


def _check(tree: ast.expr, text: str) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not _allowed(node):
            raise ExpressionError(f"'{text}' uses '{ast.unparse(node)}'; allowed are {_ALLOWED}")


def _allowed(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]):
            return name in _CALLS
        case ast.Constant(value=value):
            return type(value) in (int, bool, str)
        case ast.BinOp(op=op):
            return type(op) in _BINARY
        case ast.UnaryOp(op=op):
            return type(op) in _UNARY
        case ast.Compare(ops=ops):
            return all(type(op) in _COMPARE for op in ops)
    return isinstance(node, ast.BoolOp | ast.IfExp | ast.Name | ast.Tuple)


def _evaluate(tree: ast.expr, names: Names) -> Any:
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise ExpressionError(f"unknown name '{name}'; {nearest(name, names)}")
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, names), _evaluate(right, names))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_evaluate(operand, names))
        case ast.BoolOp(op=op, values=values):
            return _decided(isinstance(op, ast.Or), values, names)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            sides = [_evaluate(side, names) for side in (left, *rights)]
            return all(_COMPARE[type(op)][0](a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, names) else orelse, names)
        case ast.Tuple(elts=items):
            return tuple(_evaluate(item, names) for item in items)
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_evaluate(arg, names) for arg in args]
            return _CALLS[name](*values)
    raise ExpressionError(f"'{ast.unparse(tree)}' cannot be evaluated")


def _decided(by: bool, values: list[ast.expr], names: Names) -> Any:
    """The first operand whose truth decides, as ``or`` is decided by a true one; otherwise the last."""
    for value in values:
        result = _evaluate(value, names)
        if bool(result) is by:
            break
    return result
