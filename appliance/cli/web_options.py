"""The options of ``serve`` for web pages: files instead of the page, addresses that pages may reach, their settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click
from msgspec import Struct, structs

from appliance.cli.values import ui_settings
from appliance.core.proxy_target import Reach
from appliance.core.settings import HttpSettings
from appliance.errors import UsageError

T = TypeVar("T")
P = ParamSpec("P")


class WebOptions(Struct, frozen=True, kw_only=True):
    """The options given. ``allow`` are names, addresses and networks, as `core.proxy_target` reads them."""

    path: Path | None
    cors_proxy: bool
    allow: tuple[str, ...]
    ui_config: str | None
    ui_config_file: str | None
    conversations: bool

    def applied(self, http: HttpSettings) -> HttpSettings:
        """Raises UsageError for options that cannot be used."""
        if self.allow and not self.cors_proxy:
            raise UsageError("--cors-proxy-allow needs --cors-proxy; add that")
        try:
            Reach(self.allow)
        except ValueError as error:
            raise UsageError(f"--cors-proxy-allow: the proxy cannot be allowed to reach what {error}") from None
        return structs.replace(
            http,
            static=str(self.path.absolute()) if self.path is not None else None,
            cors_proxy=self.cors_proxy,
            cors_proxy_allow=self.allow,
            ui_settings=self._ui_settings(http),
        )

    def _ui_settings(self, http: HttpSettings) -> bytes:
        if self.ui_config is not None and self.ui_config_file is not None:
            raise UsageError("--ui-config and --ui-config-file say the same thing; give one of them")
        if self.ui_config is not None:
            return ui_settings("--ui-config", self.ui_config)
        if self.ui_config_file is not None:
            return ui_settings("--ui-config-file", self.ui_config_file, is_file=True)
        return http.ui_settings


def web_options(command: Callable[Concatenate[WebOptions, P], T]) -> Callable[..., T]:
    """Add the options; the command gets them as its first argument."""

    @click.option(
        "--path",
        "web_path",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Serve the files of this folder at / instead of the page.",
    )
    @click.option(
        "--cors-proxy",
        is_flag=True,
        help="Let web pages reach other servers through /cors-proxy, which MCP servers need.",
    )
    @click.option(
        "--cors-proxy-allow",
        multiple=True,
        metavar="HOST",
        help="A host or network of the local network that the proxy may also reach; 'loopback' is this machine.",
    )
    @click.option("--ui-config", metavar="JSON", help="Settings for web pages, sent by /props.")
    @click.option("--ui-config-file", metavar="FILE", help="The same, from a file.")
    @click.option("--no-conversations", is_flag=True, help="Do not keep the page's conversations on this machine.")
    @functools.wraps(command)
    def with_options(
        web_path: Path | None,
        cors_proxy: bool,
        cors_proxy_allow: tuple[str, ...],
        ui_config: str | None,
        ui_config_file: str | None,
        no_conversations: bool,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        web = WebOptions(
            path=web_path,
            cors_proxy=cors_proxy,
            allow=cors_proxy_allow,
            ui_config=ui_config,
            ui_config_file=ui_config_file,
            conversations=not no_conversations,
        )
        return command(web, *args, **kwargs)

    return with_options
