"""Commands that are printed to be pasted into a shell: every word is quoted."""

from __future__ import annotations

import shlex

from sagas.text.printable import printable_line


def quote(word: str) -> str:
    """The word, quoted for bash, zsh and ksh, on one line and with its control characters escaped."""
    if printable_line(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(_ansi_c(character) for character in word) + "'"


def _ansi_c(character: str) -> str:
    """A character within ``$'…'``. Three octal digits never run into the next character."""
    if character in "\\'":
        return "\\" + character
    if printable_line(character) == character:
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def reset_command(workflow_id: str) -> str:
    """The command of Temporal's own tool that lets a run go on from its last workflow task that did not fail."""
    return f"temporal workflow reset --workflow-id {quote(workflow_id)} --type LastWorkflowTask --reason …"


def shell_command(*words: str) -> str:
    """The command line of these words."""
    return " ".join(map(quote, words))


def saga_command(verb: str, *arguments: object, **options: object) -> str:
    """``saga VERB ARGUMENT… --option VALUE…``; True is an option without a value, None and False are left out, and a
    tuple repeats the option for each of its values.

    An argument that begins with a hyphen follows ``--``, so that it is not read as an option.
    """
    words = ["saga", verb]
    given = []
    for name, value in options.items():
        option = "--" + name.strip("_").replace("_", "-")
        for each_value in value if isinstance(value, tuple) else (value,):
            if each_value is True:
                given.append(option)
            elif each_value is not None and each_value is not False:
                text = str(each_value)
                given += [f"{option}={text}"] if text.startswith("-") else [option, text]
    after = [str(argument) for argument in arguments]
    hidden = any(word.startswith("-") for word in after)
    return shell_command(*words, *([*given, "--", *after] if hidden else [*after, *given]))
