"""The frame of every HTML report: one self-contained page, in light and dark."""

from __future__ import annotations

from html import escape

from sagas.text.printable import printable

STYLE_SHEET = """
:root { color-scheme: light dark; --line: #8884; --dim: #595959 }
:root { --pass: #1a7f37; --info: #0b62c4; --warn: #9a6700; --fail: #cf222e }
@media (prefers-color-scheme: dark) {
  :root { --dim: #a9a9a9; --pass: #4ac26b; --info: #6cb6ff; --warn: #d4a72c; --fail: #ff7b72 }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid var(--line) }
thead th { font-weight: 600; opacity: .75 }
small { display: block; opacity: .75 }
pre { overflow-x: auto; white-space: pre-wrap; padding: .6rem; border: 1px solid var(--line); border-radius: 6px }
code, td.value { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
.bold { font-weight: 600 } .dim { color: var(--dim) } .never { opacity: .4 }
.pass, .green, .COMPLETED { color: var(--pass) } .info, .cyan, .COMPENSATED { color: var(--info) }
.warn, .yellow, .PARKED { color: var(--warn) } .fail, .red { color: var(--fail) }
.plain { list-style: none; padding-left: 0 } .wide { overflow-x: auto } :target { outline: 2px solid var(--info) }
table.source td, table.source th { border: 0; padding: 0 .6rem; white-space: pre-wrap; font-weight: 400 }
.residue { color: var(--fail); font-weight: 600 }
"""


def html_page(title: str, body: str, follow: tuple[str, str] | None = None) -> str:
    """``title`` is plain text, ``body`` HTML with the classes of the style sheet.

    ``follow``: the address of the script that shows a later version of the page, and the version of this one.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    script, version = "", ""
    if follow is not None:
        policy += "; script-src 'self'; connect-src 'self'"
        version = f' data-version="{escape(follow[1])}"'
        # A browser without scripts shows the page again every few seconds.
        script = (
            f'<script src="{follow[0]}" defer></script><noscript><meta http-equiv="refresh" content="3"></noscript>'
        )
    page = (
        f'<!doctype html>\n<html lang="en"{version}><head><meta charset="utf-8">'
        # Nothing else in these pages runs or is loaded, not even if something in them escaped its escaping.
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE_SHEET}</style>{script}</head><body>\n{body}\n</body></html>\n"
    )
    return printable(page)


def served_page(title: str, body: str, *, style_sheet: str, icon: str) -> str:
    """A page of a server, which sends its own Content-Security-Policy, and its style sheet and icon at addresses."""
    links = f'<link rel="stylesheet" href="{escape(style_sheet)}"><link rel="icon" href="{escape(icon)}">'
    return printable(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>{links}</head><body>\n{body}\n</body></html>\n"
    )
