"""Methods that are written as a call, such as `poll = delegate(LitePullConsumerImpl.poll)`.

The public consumers and the asyncio classes have many. Without this extension, the reference takes
them for attributes without a docstring and omits them.
"""

from __future__ import annotations

from typing import Any

import griffe


class Delegates(griffe.Extension):
    """Replaces each `name = function(Class.method)` by the method."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace the members of all classes once a package has been loaded."""
        for module in list(pkg.modules.values()):
            self.on_package(pkg=module)
        for owner in list(pkg.classes.values()):
            for name, member in list(owner.members.items()):
                call = member.value if isinstance(member, griffe.Attribute) else None
                if isinstance(call, griffe.ExprCall) and call.arguments:
                    method = _method_of(call, member)
                    if method is not None:
                        owner.set_member(name, _copy(method, name, call))


def _method_of(call: griffe.ExprCall, at: griffe.Object | griffe.Alias) -> griffe.Function | None:
    """Return the method that is the first argument of a call, or None if that is something else."""
    argument = call.arguments[0]
    if not isinstance(argument, griffe.Expr):
        return None
    path, _, name = argument.canonical_path.rpartition(".")
    try:
        owner = at.modules_collection[path]
    except (KeyError, ValueError):
        return None
    found = owner.all_members.get(name)
    method = found.final_target if found is not None and found.is_alias else found
    return method if isinstance(method, griffe.Function) else None


def _copy(method: griffe.Function, name: str, call: griffe.ExprCall) -> griffe.Function:
    made = griffe.Function(
        name,
        parameters=method.parameters,
        returns=method.returns,
        lineno=method.lineno,
        endlineno=method.endlineno,
        docstring=method.docstring,
    )
    made.labels |= method.labels
    if "thread" in str(call.function):
        made.labels.add("async")
    return made
