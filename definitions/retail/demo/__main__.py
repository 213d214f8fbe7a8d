"""`python -m demo` in the folder of the demo's project; `make demo` and `saga demo` run it."""

from __future__ import annotations

from saga_cli.main import CommandEntry, main

if __name__ == "__main__":
    main(CommandEntry("demo", "demo.command:demo", "run real shopping baskets through real databases", ""))
