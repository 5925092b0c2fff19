"""
Program that compares expressions with math-verify: one JSON pair a line in, one JSON verdict a line out.

It runs in a process of its own ([`ragen_envs.symbolic`] starts it), because math-verify can only limit its own time in
a main thread, and because nothing but the end of a process stops every calculation. Not imported by the package.
"""

import json
import logging
import sys
from typing import Any


# Enough for SymPy; a calculation that wants more fails instead of taking the machine down.
_MAX_BYTES = 4 * 2**30
# math-verify compares numbers with a tolerance; what it calls equal is looked at again with this many digits.
_DIGITS = 60


def limit_memory() -> None:
    """Bound the memory of this process, where the system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    except (ImportError, OSError, ValueError):
        pass


def same(answer: str, gold: str) -> bool:
    """Whether two expressions are equal."""
    from math_verify import parse, verify

    ours, theirs = (parse(f"${text}$", parsing_timeout=None) for text in (answer, gold))
    if not verify(theirs, ours, timeout_seconds=None):
        return False
    return not ours or not theirs or agree(ours[0], theirs[0])


def agree(ours: Any, theirs: Any) -> bool:
    """Whether two SymPy expressions have the same values, at places chosen once; other objects are let pass."""
    import sympy

    if not isinstance(ours, sympy.Expr) or not isinstance(theirs, sympy.Expr):
        return True
    ours, theirs = (sympy.nsimplify(side, rational=True) for side in (ours, theirs))
    symbols = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    for place in (1, 2) if symbols else (1,):
        values = {symbol: sympy.Rational(7 * place + 3 * i, 11) for i, symbol in enumerate(symbols)}
        first, second = (sympy.N(side.subs(values), _DIGITS) for side in (ours, theirs))
        if not abs(first - second) <= sympy.Float(10) ** (10 - _DIGITS) * (abs(first) + abs(second)):
            return False
    return True


def main() -> None:
    """Answer until the input ends."""
    logging.disable(logging.CRITICAL)
    limit_memory()
    import math_verify  # noqa: F401  (its import takes a second that is not to be taken from the first pair)

    print(json.dumps("ready"), flush=True)  # noqa: T201
    for line in sys.stdin:
        answer, gold = json.loads(line)
        try:
            verdict = bool(same(answer, gold))
        # What cannot be parsed or calculated, for whatever reason, is not equal.
        except (Exception, RecursionError, MemoryError):
            verdict = False
        print(json.dumps(verdict), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
