"""Running a traced function over a mesh with explicit axes that it was not traced for.

A trace contains inner jitted functions (every `jnp.where` is one). JAX cannot map these over an
axis of a mesh that the trace does not know. So the trace is run one operation at a time: each
operation finds the mesh in its arguments.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]  # JAX 0.12
    Literal,
    jaxpr_as_fun,
)


def run_inlined(closed: ClosedJaxpr, *args: Any) -> list[Any]:
    """`jaxpr_as_fun(closed)(*args)`, operation by operation; the caller may be tracing."""
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else known[variable]

    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("jit", "pjit"):
            found = run_inlined(eqn.params["jaxpr"], *map(read, eqn.invars))
        else:
            variables = [v for v in eqn.invars if not isinstance(v, Literal)]
            needs = list(dict.fromkeys(variables))
            found = jaxpr_as_fun(_alone(jaxpr, eqn, needs))(*map(read, needs))
        known.update(zip(eqn.outvars, found, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _alone(jaxpr: Any, eqn: Any, needs: list[Any]) -> ClosedJaxpr:
    """A program of one operation.

    The bet: a trace of JAX can be copied with other parts by `replace`. If it is lost,
    `tests/device/test_explicit_axes.py` fails first.
    """
    one = jaxpr.replace(
        constvars=[],
        invars=needs,
        outvars=list(eqn.outvars),
        eqns=[eqn],
        effects=eqn.effects,
        debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None),
    )
    return ClosedJaxpr(one, [])
