"""Targets of tools: the words llama-server's users know, and nothing that becomes an option of another program."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.rooted_paths import expanded
from appliance.core.tools.targets import (
    BadToolTarget,
    ContainerImage,
    RunningContainer,
    Ssh,
    parse_target,
    quoted,
    running_target,
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("docker:busybox", ContainerImage("docker", "busybox")),
        ("podman:quay.io/org/image:1.2@sha256:abc", ContainerImage("podman", "quay.io/org/image:1.2@sha256:abc")),
        ("docker-container:abc123", RunningContainer("docker", "abc123")),
        ("podman-container:my_box.1", RunningContainer("podman", "my_box.1")),
        ("ssh:user@host.example", Ssh("user@host.example")),
    ],
)
def test_what_there_is(text: str, target: object) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fake:does-not-exist", "unknown tool runtime"),
        ("", "unknown tool runtime"),
        ("docker", "invalid image name"),
        ("ssh:-oProxyCommand=touch /tmp/pwned", "invalid ssh target"),
        ("ssh:", "invalid ssh target"),
        ("docker-container:--privileged", "invalid container id"),
        ("podman-container:.hidden", "invalid container id"),
        ("docker:-v/:/host", "invalid image name"),
        ("docker-container:abc\n", "invalid container id"),
    ],
)
def test_what_there_is_not(text: str, words: str) -> None:
    with pytest.raises(BadToolTarget, match=words):
        parse_target(text)


def test_a_client_starts_no_container() -> None:
    with pytest.raises(BadToolTarget, match="tool runtime must name a running container"):
        running_target("docker:busybox")


@given(st.sampled_from(["ssh:", "docker:", "docker-container:", "podman:"]), st.text(max_size=12))
def test_what_passes_is_no_option_and_nothing_for_a_shell(scheme: str, rest: str) -> None:
    try:
        parse_target(scheme + rest)
    except BadToolTarget:
        return
    assert not rest.startswith("-")
    assert re.fullmatch(r"[A-Za-z0-9._@/:-]+", rest)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), max_size=5))
def test_quoted_words_are_read_as_they_were(words: list[str]) -> None:
    assert shlex.split(quoted(words)) == words


@pytest.mark.parametrize(
    ("path", "found"),
    [("~", "/home/a"), ("~/x/~", "/home/a/x/~"), ("~b/x", "~b/x"), ("x/~", "x/~"), ("/x", "/x"), ("", "")],
)
def test_a_tilde_at_the_start_is_the_home_folder_where_there_is_one(path: str, found: str) -> None:
    assert (expanded(path, "/home/a"), expanded(path, "")) == (found, path)
