"""``service``: installs the program as a service of the operating system, and steers it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.show import json_option, print_json
from appliance.core.installed import CONFIG_ROOT
from appliance.core.settings import DEFAULT_HOST, DEFAULT_PORT
from appliance.errors import UsageError
from appliance.features.service.core.systemd import SYSUSERS
from appliance.features.service.core.windows import is_for_everybody, with_folder, without_folder
from appliance.platform.console import PROGRAM, as_called, say
from appliance.start import own_command

if TYPE_CHECKING:
    from appliance.features.service.core.status import ServiceStatus
    from appliance.features.service.launchd import Launchd
    from appliance.features.service.systemd import Systemd
    from appliance.features.service.windows import WindowsService

NOT_RUNNING = 3  # exit status of ``service status`` for a service that does not run, as systemctl has it

user_option = click.option("--user", is_flag=True, help="A service of your own, without root, instead of the system's.")


@click.group()
def service() -> None:
    """Install the program as a service that starts with the machine, and steer it.

    On Linux this is a systemd service: of the system, under a user of its own, or with --user one of your own. On
    macOS it is a launchd job: a daemon under a user of its own, or with --user an agent that starts with your session.
    On Windows it runs under an account of its own, and the console has to be an administrator's.

    \b
    Examples:
      sudo llama-appliance service install
      llama-appliance service install --user -- --models-dir ~/models
      llama-appliance service status
    """


def _command(program: Path | None, words: tuple[str, ...], *, user: bool) -> list[str]:
    """Return what the service runs: this program, or the one at ``program``, with the words for ``serve``."""
    own = own_command() if program is None else [str(program.absolute())]
    if sys.platform == "win32":
        from appliance.features.service.windows import home_of

        return [*own, "service", "run", "--home", str(home_of()), "--", *words]
    root = ("--config-root", CONFIG_ROOT) if sys.platform == "linux" and not user else ()
    return [*own, "serve", *root, *words]


serve_words = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE OPTIONS]")


@service.command()
@user_option
@click.option("--no-start", is_flag=True, help="Do not start it now.")
@serve_words
async def install(user: bool, no_start: bool, words: tuple[str, ...]) -> None:
    """Install the service, let it start with the machine (--user: with your session), and start it now.

    \b
    Examples:
      sudo llama-appliance service install
      sudo llama-appliance service install -- --listen 0.0.0.0:8080 --api-key-file /etc/llama-appliance/keys
    """
    entry = _entry(user)
    await entry.install(_command(None, words, user=user), start=not no_start)
    say(f"installed {entry.unit}{'' if no_start else ' and started it'}")
    if entry.key is not None:
        say(f"its page and its API ask for the key in {entry.key}, which only administrators can read")


@service.command()
@user_option
@click.option("--purge", is_flag=True, help="Also delete the service's models, data and user.")
async def uninstall(user: bool, purge: bool) -> None:
    """Stop the service and remove it. Its data stay unless --purge is given.

    \b
    Example:
      sudo llama-appliance service uninstall
    """
    if purge and user:
        raise UsageError("--purge is for the service of the system; your own models and data belong to you")
    entry = _entry(user)
    kept = await entry.uninstall(purge=purge)
    say(f"removed {entry.unit}" + (f"; {' and '.join(kept)} stay, --purge deletes them" if kept else ""))


def _steering(verb: str, text: str) -> None:
    @service.command(verb, help=f"{text} Waits until it is done.\n\nExample: sudo llama-appliance service {verb}")
    @user_option
    async def steer(user: bool) -> None:  # pyright: ignore[reportUnusedFunction]
        await _entry(user).steer(verb)


_steering("start", "Start the service.")
_steering("stop", "Stop the service: requests under way may finish.")
_steering("restart", "Stop the service and start it.")


@service.command()
@user_option
@json_option
async def status(user: bool, as_json: bool) -> int:
    """Show whether the service is installed and runs. The exit status is 3 if it does not run.

    \b
    Example:
      llama-appliance service status --json
    """
    found = await _entry(user).status()
    if as_json:
        print_json(found)
    else:
        click.echo(as_called(_in_words(found, user=user)))
    return 0 if found.state == "active" else NOT_RUNNING


def _in_words(found: ServiceStatus, *, user: bool) -> str:
    if not found.installed:
        if not user and sys.platform != "win32" and Path(_entry(True).unit).exists():
            return "not installed, but a service of your own is: --user means that one"
        return f"not installed; '{PROGRAM} service install{' --user' if user else ''}' installs it"
    pid = f", process {found.pid}" if found.pid is not None else ""
    restarts = f", restarted {found.restarts} times" if found.restarts else ""
    begin = "your session" if user else "the machine"
    enabled = f"starts with {begin}" if found.enabled else "does not start by itself"
    said = f"\n  {found.said}" if found.said else ""
    return f"{found.state} ({found.detail}{pid}{restarts}); {enabled}\n  {found.unit}{said}"


@service.command("open")
async def open_page() -> None:
    """Open the page of the service in the browser.

    Without a service that runs, one of your own is installed and started first. A double click on the app of macOS
    does this.

    \b
    Example:
      llama-appliance service open
    """
    click.launch(await page_of(_entry, _command(None, (), user=True)))


async def page_of(entry_of: Callable[[bool], Systemd | Launchd | WindowsService], command: Sequence[str]) -> str:
    """Return the address of the machine's service, else of the user's own, which is installed or started for it."""
    found = await entry_of(False).status()
    if found.state != "active":
        own = entry_of(True)
        if (await own.status()).installed:
            await own.steer("start")
        else:
            await own.install(command, start=True)
        found = await own.status()
    told = found.said.removeprefix("listening on ").partition(" ")[0]  # other users may not see it
    return told or f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"


@service.command()
@user_option
@click.option(
    "--program", type=click.Path(path_type=Path), metavar="FILE", help="Path of the program in it; default: this one."
)
@click.option("--sysusers", is_flag=True, help="Print the lines of sysusers.d(5) for the service's user instead.")
@serve_words
def unit(user: bool, program: Path | None, sysusers: bool, words: tuple[str, ...]) -> None:
    """Print the systemd unit that 'service install' would write, and write nothing.

    On macOS that is the plist, on Windows the command line.

    \b
    Example:
      llama-appliance service unit -- --listen 0.0.0.0:8080
    """
    if sysusers:
        click.echo(SYSUSERS, nl=False)
        return
    click.echo(_entry(user).text(_command(program, words, user=user)), nl=False)


@service.command("run", hidden=True)
@click.option("--home", type=click.Path(path_type=Path), required=True)
@serve_words
@click.pass_obj
def run_as_service(run: Callable[[Sequence[str]], int], home: Path, words: tuple[str, ...]) -> int:
    """Be the service: the service manager of Windows starts this."""
    if sys.platform != "win32":
        raise UsageError(f"only the service manager of Windows starts this; '{PROGRAM} serve' serves here")
    from appliance.features.service import windows
    from appliance.features.service.windows_calls import load

    return windows.run_service(load(), lambda: run(windows.serve_words(home, words)), home)


@service.command("on-path", hidden=True)
@user_option
def on_path(user: bool) -> None:
    """Put the program's folder on PATH: the installers of Windows do this."""
    allowed = user or is_for_everybody(str(Path(sys.executable).parent), os.environ)
    if not allowed:
        say(f"{Path(sys.executable).parent} is not put on everybody's PATH: users may write outside of Program Files")
    _change_path(with_folder if allowed else without_folder, user)


@service.command("off-path", hidden=True)
@user_option
def off_path(user: bool) -> None:
    """Take the program's folder off PATH."""
    _change_path(without_folder, user)


def _change_path(change: Callable[[str, str], str], user: bool) -> None:
    if sys.platform != "win32":
        raise UsageError("this is for the installer of Windows; elsewhere the shell's own settings have PATH")
    from appliance.features.service.windows_calls import change_path

    folder = str(Path(sys.executable).parent)
    change_path(lambda path: change(path, folder), user=user)


@service.command("end-programs", hidden=True)
def end_programs_here() -> None:
    """End what runs from the program's folder: an installer is about to replace it."""
    from appliance.features.service.windows import end_programs

    click.echo(f"ended {end_programs(Path(sys.executable).parent)} programs")


def _entry(user: bool) -> Systemd | Launchd | WindowsService:
    """Return the service of this system. Raises UsageError on systems that this program has no service for."""
    if sys.platform == "darwin":
        from appliance.features.service.launchd import Launchd

        return Launchd(user=user)
    if sys.platform == "win32":
        from appliance.features.service.windows import WindowsService
        from appliance.features.service.windows_calls import load

        if user:
            raise UsageError(
                "Windows has services of the machine only; leave out --user in an administrator's console, or let a "
                "shortcut in your Startup folder start the program"
            )
        return WindowsService(load())
    if sys.platform != "linux":
        raise UsageError(f"there is no service for {sys.platform}; start '{PROGRAM} serve' from the init system")
    from appliance.features.service.systemd import Systemd

    return Systemd(user=user)
