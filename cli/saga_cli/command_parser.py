"""The commands of typer with one more rule: an option that has one value is given once."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class OnceCommand(TyperCommand):
    """Refuses a second value of an option, of which typer would silently take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Called by typer with the words of one command line."""
        seen = set()
        param: Any
        for param in self.make_parser(ctx).parse_args(args=list(args))[2]:
            if param.name in seen and not param.multiple and (not param.is_flag or param.secondary_opts):
                names = "/".join([*param.opts, *param.secondary_opts])
                ctx.fail(f"{names} is given more than once, and has one value: keep the one that is meant")
            if param.param_type_name == "option":
                seen.add(param.name)
        return super().parse_args(ctx, args)
