"""The timeline in words: one English sentence for each entry, made when somebody reads it."""

from __future__ import annotations

import msgspec

from appliance.core.quantities import size, span
from appliance.core.records.history import Happening
from appliance.core.scheduling.effects import EVICTING, Cause, Rule

_RULES: dict[Rule, str] = {
    "squeeze": "other programs took memory",
    "idle": "its time without a request was over",
    "asked": "somebody unloaded it",
    "shutdown": "the program ended",
    "outdated": "its settings or files have changed",
    "removed": "there is no such model any more",
    "moved": "another engine is better for it",
    "hung": "",
    "condemned": "",
}
_TRIGGERS = {"asked": "a request asked for it", "signal": "SIGHUP asked for it", "file": "a file has changed"}


def told(happening: Happening) -> dict[str, object]:
    """The entry as readers get it: its facts, and in ``why`` the sentence."""
    return {**msgspec.to_builtins(happening), "why": sentence(happening)}


def sentence(happening: Happening) -> str:
    """One English sentence with the reason."""
    name, of = happening.model, happening
    match of.kind:
        case "loading":
            waited = f", the first for {span(of.seconds)}" if of.seconds >= 1 else ""
            return f"{name} is loaded: {_requests(of.requests)} {_waits(of.requests)} for it{waited}"
        case "loaded":
            return f"{name} was ready after {of.seconds:.1f} s{f' on {of.engine}' if of.engine else ''}"
        case "failed" | "crashed":
            on = f" on {of.engine}" if of.engine else ""
            return f"{name} {'did not start' if of.kind == 'failed' else 'died'}{on}: {of.error}"
        case "evicted" | "unloaded" | "hung" if of.cause is not None:
            return _stopped(name, of.cause)
        case "refused":
            return f"{_requests(of.requests)} for {name} {'was' if of.requests == 1 else 'were'} refused: {of.error}"
        case "fallback" if of.reason == "started":
            return f"{name} was started on {of.following}, because it did not start on {of.engine}: {of.error}"
        case "fallback":
            return f"a request for {name} was {of.reason} on {of.following}, because {of.engine} failed: {of.error}"
        case "engine":
            return f"{of.following} is used instead of {of.engine}: {of.error}"
        case "reload":
            if of.error:
                outcome = f"not read again, and nothing changes: {of.error}"
            else:
                outcome = f"read again; processes out of date: {', '.join(of.changed) or 'none'}"
            verb = "were" if of.what == "presets" else "was"
            return f"the {of.what} {verb} {outcome} ({_TRIGGERS.get(of.reason, of.reason)})"
        case _:
            return f"{name}: {of.error}"


def _stopped(name: str, cause: Cause) -> str:
    match cause.rule:
        case "group":
            rule = f"the group '{cause.set}' does not let both run"
        case "matrix":
            rule = f"the set '{cause.set}' is without it" if cause.set else "no set of the matrix has both"
        case "number":
            rule = f"{cause.most} {'model' if cause.most == 1 else 'models'} may run at once"
        case "memory":
            rule = ""
        case rule:
            rule = _RULES[rule]
    facts = (
        rule,
        "least recently used" if cause.longest_idle else "",
        f"idle {span(cause.idle)}" if cause.rule in EVICTING or cause.rule == "idle" else "",
        " and ".join(f"{size(missing)} of {device}" for device, missing in cause.short.items())
        + (" were short" if cause.short else ""),
        cause.note,
        f"{_requests(cause.leases)} still used it" if cause.leases else "",
    )
    went = f"{name} went for {cause.by}" if cause.by else f"{name} was stopped"
    return f"{went}: {', '.join(fact for fact in facts if fact)}"


def _requests(number: int) -> str:
    return f"{number} request{'s' * (number != 1)}"


def _waits(number: int) -> str:
    return "waits" if number == 1 else "wait"
