from __future__ import annotations

import contextlib
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.errors import ExpressionError
from generator.expression import Expression

NAMES = {"a": 7, "b": 3, "dtype": "bf16"}
_atoms = st.one_of(st.integers(0, 99).map(str), st.sampled_from(["a", "b"]))
_texts = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "<", "<=", "==", "and", "or"]), inner).map(
            lambda parts: "({} {} {})".format(*parts)
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda parts: "{}({}, {})".format(*parts)),
        inner.map(lambda text: f"(not {text})"),
        inner.map(lambda text: f"(-{text})"),
    ),
    max_leaves=12,
)


@given(_texts)
def test_agrees_with_python(text: str) -> None:
    try:
        expected = eval(text, {"min": min, "max": max}, dict(NAMES))
    except ZeroDivisionError:
        with pytest.raises(ExpressionError):
            Expression(text).evaluate(NAMES)
    else:
        assert Expression(text).evaluate(NAMES) == expected


@given(st.text(max_size=40))
def test_any_text_gives_a_value_or_an_expression_error(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        Expression(text).evaluate(NAMES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dtype == 'bf16'", True),
        ("dtype in ('f16', 'bf16')", True),
        ("dtype not in ('f16',)", True),
        ("1 < b < a", True),
        ("a if b > 5 else 0", 0),
        ("max(a, b, 9)", 9),
    ],
)
def test_values(text: str, value: object) -> None:
    assert Expression(text).evaluate(NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a +",
        "a ** 2",
        "a / 2",
        "a << 2",
        "f(a)",
        "min(a, key=b)",
        "a.real",
        "a[0]",
        "lambda: 0",
        "[a]",
        "1.5",
        "b'x'",
        "__import__('os')",
        "min(*a)",
        "min()",
        "a := 1",
        "a; b",
        "(x for x in a)",
        "f'{a}'",
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text).evaluate(NAMES)


def test_names() -> None:
    assert Expression("max(a, 2) * c").names == {"a", "c"}


def test_unknown_name_has_the_nearest() -> None:
    with pytest.raises(ExpressionError, match=r"unknown name 'tile_nn'; nearest: tile_n"):
        Expression("tile_nn").evaluate({"tile_n": 1})


def test_faults_carry_text_and_numbers() -> None:
    with pytest.raises(ExpressionError, match=r"'a // b' .*'b': 0.*zero"):
        Expression("a // b").evaluate({"a": 1, "b": 0})
    with pytest.raises(ExpressionError, match="not supported"):
        Expression("dtype < 3").evaluate(NAMES)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("b >= a", "b = 3 < a = 7"),
        ("a > 0 and a * b <= 20", "a * b = 21 > 20 (a = 7, b = 3)"),
        ("a == 1 or b == 1", "a = 7 != 1 and b = 3 != 1"),
        ("0 < b < 2", "b = 3 >= 2"),
        ("dtype in ('f16', 'f32')", "dtype = bf16 not in ('f16', 'f32')"),
        ("not a", "not a is False (a = 7)"),
    ],
)
def test_failure_names_the_part_and_its_numbers(text: str, failure: str) -> None:
    assert not Expression(text).evaluate(NAMES)
    assert Expression(text).failure(NAMES) == failure


@given(_texts)
def test_failure_of_whatever_is_false(text: str) -> None:
    expression = Expression(text)
    try:
        holds = expression.evaluate(NAMES)
    except ExpressionError:
        return
    if not holds:
        assert expression.failure(NAMES)


def test_equality_is_that_of_the_text() -> None:
    assert Expression("a") == Expression("a") != Expression("b")
    assert len({Expression("a"), Expression("a")}) == 1
    assert operator.ne(Expression("a"), "a")
