"""The notifications of a story for people."""

from __future__ import annotations

from datetime import datetime

from saga_cli.story_words import Line, Story, clock, length, moment

_STYLES = {"DELIVERED": "green", "PENDING": "cyan", "EXHAUSTED": "bold red", "STOPPED": "red"}


def notification_lines(story: Story, now: datetime) -> list[Line]:
    """A line for each, and what to do about one that was given up."""
    lines: list[Line] = []
    for row in story.get("notifications") or ():
        lines.append([("  ", ""), *notification_line(row, now)])
        if row["state"] in ("EXHAUSTED", "STOPPED"):
            lines.append([(f"    saga notify {story['id']} {row['id']} --again", "cyan")])
    return [[("notifications", "dim")], *lines] if lines else []


def notification_line(row: Story, now: datetime) -> Line:
    """One notification: its name, what it uses, how it stands, and why it has not arrived."""
    state = row["state"] or "forgotten by Temporal"
    line: Line = [(row["id"], "bold"), (f"  {row['uses']}  ", ""), (state, _STYLES.get(state, "dim"))]
    attempts = row.get("attempts")
    if attempts:
        line.append((f"  {attempts} attempt{'' if attempts == 1 else 's'}", "dim"))
    ended = moment(row.get("ended_at"))
    if ended is not None:
        line.append((f"  {clock(ended)}", "dim"))
    if row.get("error"):
        line.append((f"  {row['error']['message']}", "yellow"))
    following = moment(row.get("next_attempt_at"))
    if following is not None and following > now:
        line.append((f"  next attempt in {length(following, now)}", "dim"))
    return line
