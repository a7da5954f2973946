"""Make the macOS app and its installer package from payloads, one for each kind of processor.

    python3 bootstrap.py package app [--payload FOLDER ...]               dist/packages/Llama Appliance.app
    python3 bootstrap.py package pkg [--payload FOLDER ...] [--unsigned]  also dist/packages/llama-appliance-*-macos.pkg

A payload is what `bootstrap.py freeze` makes on a Mac; dist/llama-appliance/ if none is named. Both need a Mac with
Xcode's command line tools. The app is universal: one program, and a payload for each kind of processor beside it.

    Llama Appliance.app/Contents/MacOS/llama-appliance-open     macos-open.c: opens the page
    Llama Appliance.app/Contents/Resources/arm64/, x64/         the payloads
    /usr/local/bin/llama-appliance                              the command, a link to the program above

The package has two parts, the app and the machine's service; the second is chosen in the installer, or with
`installer -applyChoiceChangesXML`. Without --unsigned all is signed, notarised and stapled: see packaging/codesign.py.
"""

from __future__ import annotations

import argparse
import json
import plistlib
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging"))
import codesign
from contents import ROOT, named

HERE = Path(__file__).resolve().parent
NAME, TITLE = "llama-appliance", "Llama Appliance"
IDENTIFIER = "io.llama-appliance"
"""The first part of all identifiers; that of the launchd jobs (appliance/features/service/core/launchd.py)."""
OPENER = "llama-appliance-open"
OLDEST = "13.3"
"""macOS that the engines need (llama-builds/manifest.toml)."""
KINDS = {"macos-arm64": "arm64", "macos-x64": "x64"}
"""Platform of a payload to its folder in the app, which macos-open.c also names."""
CLANG = {"arm64": "arm64", "x64": "x86_64"}
PACKAGES = ROOT / "dist" / "packages"
ICON_SIZES = {
    b"ic07": 128,
    b"ic08": 256,
    b"ic09": 512,
    b"ic10": 1024,
    b"ic11": 32,
    b"ic12": 64,
    b"ic13": 256,
    b"ic14": 512,
}
"""Types of icons that hold a PNG, to its pixels; Apple's names end in @2x from ic10 on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("app", "pkg"))
    parser.add_argument("--payload", type=Path, action="append", metavar="FOLDER", help="default: dist/llama-appliance")
    parser.add_argument("--unsigned", action="store_true", help="sign nothing; macOS warns of such an app")
    args = parser.parse_args()
    payloads, version = read_payloads(args.payload or [ROOT / "dist" / NAME])
    if not args.unsigned and args.kind == "pkg":
        codesign.check_secrets()
    PACKAGES.mkdir(parents=True, exist_ok=True)
    app = PACKAGES / f"{TITLE}.app"
    work = ROOT / "build" / "macos"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    opener = compile_opener(list(payloads), work)
    make_app(app, payloads, version, opener)
    if args.kind == "pkg" and args.unsigned:
        print(make_pkg(app, version, list(payloads), work))
    elif args.kind == "pkg":
        with codesign.keychain() as chain:
            for kind in payloads:
                codesign.sign_payload(app / "Contents" / "Resources" / kind, chain)
            codesign.sign(app, chain)
            made = make_pkg(app, version, list(payloads), work, "--keychain", chain, "--sign", codesign.INSTALLER)
        codesign.notarise(made)
        print(made)


def read_payloads(folders: Sequence[Path]) -> tuple[dict[str, Path], str]:
    """Return the payloads by their kind of processor, and their version; ends with an error for what does not fit."""
    found: dict[str, Path] = {}
    versions: set[tuple[str, str]] = set()
    for folder in folders:
        try:
            facts = json.loads((folder / "payload.json").read_bytes())
        except OSError:
            sys.exit(f"error: there is no {folder / 'payload.json'}; 'python3 bootstrap.py freeze' makes it, on a Mac")
        if facts["platform"] not in KINDS:
            sys.exit(f"error: {folder} is for {facts['platform']}; the app needs payloads for {' and '.join(KINDS)}")
        if KINDS[facts["platform"]] in found:
            sys.exit(f"error: {folder} and another payload are both for {facts['platform']}; name one of them")
        found[KINDS[facts["platform"]]] = folder
        versions.add((facts["version"], facts["commit"]))
    if len(versions) > 1:
        sys.exit(f"error: the payloads are of different commits: {sorted(versions)}; make them from one")
    return found, versions.pop()[0]


# ---- the app ---------------------------------------------------------------------------------------------------------


def compile_opener(kinds: Sequence[str], work: Path) -> Path:
    """Compile macos-open.c for these kinds of processor into one file."""
    made = work / OPENER
    words = [word for kind in kinds for word in ("-arch", CLANG[kind])]
    codesign.run("clang", "-O2", "-Wall", "-Werror", f"-mmacosx-version-min={OLDEST}", *words,
                 str(HERE / "macos-open.c"), "-o", str(made))  # fmt: skip
    return made


def make_app(app: Path, payloads: dict[str, Path], version: str, opener: Path) -> None:
    """Lay out the app, in the place of an older one."""
    shutil.rmtree(app, ignore_errors=True)
    inside = app / "Contents"
    (inside / "MacOS").mkdir(parents=True)
    shutil.copy2(opener, inside / "MacOS" / OPENER)
    for kind, payload in payloads.items():
        shutil.copytree(payload, inside / "Resources" / kind, symlinks=True)
    (inside / "Resources" / f"{NAME}.icns").write_bytes(icon())
    shutil.copy2(HERE / "macos-uninstall.sh", inside / "Resources" / "uninstall.sh")
    (inside / "Info.plist").write_bytes(plistlib.dumps(info(version, list(payloads))))
    (inside / "PkgInfo").write_text("APPL????")


def info(version: str, kinds: Sequence[str]) -> dict[str, object]:
    """Return the app's Info.plist (Apple's Information Property List Key Reference)."""
    return {
        "CFBundleDevelopmentRegion": "en",
        "CFBundleDisplayName": TITLE,
        "CFBundleExecutable": OPENER,
        "CFBundleIconFile": f"{NAME}.icns",
        "CFBundleIdentifier": IDENTIFIER,
        "CFBundleInfoDictionaryVersion": "6.0",
        "CFBundleName": TITLE,
        "CFBundlePackageType": "APPL",
        "CFBundleShortVersionString": version,
        "CFBundleSupportedPlatforms": ["MacOSX"],
        "CFBundleVersion": version,
        "LSApplicationCategoryType": "public.app-category.developer-tools",
        "LSArchitecturePriority": [CLANG[kind] for kind in kinds],
        "LSMinimumSystemVersion": OLDEST,
        "LSUIElement": True,  # it opens the page and ends: nothing to show in the Dock
        "NSHighResolutionCapable": True,
    }


def icon() -> bytes:
    """Return the icon in Apple's format: blocks of type, length and PNG."""
    import resvg_py  # of use here alone

    text = (HERE / f"{NAME}.svg").read_text("utf-8")
    pictures = {size: resvg_py.svg_to_bytes(svg_string=text, width=size, height=size) for size in ICON_SIZES.values()}
    blocks = b"".join(
        struct.pack(">4sI", kind, 8 + len(pictures[size])) + bytes(pictures[size]) for kind, size in ICON_SIZES.items()
    )
    return struct.pack(">4sI", b"icns", 8 + len(blocks)) + blocks


# ---- the package -----------------------------------------------------------------------------------------------------


def make_pkg(app: Path, version: str, kinds: Sequence[str], work: Path, *signing: str) -> Path:
    """Pack the app and the service into one installer package. ``signing``: more words for productbuild."""
    stage, scripts = work / "stage", work / "scripts"
    applications, link = stage / "Applications", stage / "usr" / "local" / "bin" / NAME
    applications.mkdir(parents=True)
    shutil.copytree(app, applications / app.name, symlinks=True)
    link.parent.mkdir(parents=True)
    link.symlink_to(f"/Applications/{app.name}/Contents/MacOS/{OPENER}")
    parts = work / "components.plist"
    parts.write_bytes(plistlib.dumps(components(app.name)))
    for part in ("program", "service"):
        for script in sorted(HERE.glob(f"macos-{part}-*.sh")):
            target = scripts / part / script.stem.rpartition("-")[2]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(script, target)
            target.chmod(0o755)
    for part, words in {
        "program": ("--root", str(stage), "--component-plist", str(parts), "--install-location", "/"),
        "service": ("--nopayload",),
    }.items():
        codesign.run("pkgbuild", *words, "--identifier", f"{IDENTIFIER}.{part}", "--version", version,
                     "--scripts", str(scripts / part), str(work / f"{part}.pkg"))  # fmt: skip
    (work / "distribution.xml").write_bytes(distribution(version, kinds))
    made = PACKAGES / f"{NAME}-{version}-macos{'' if len(kinds) > 1 else f'-{kinds[0]}'}.pkg"
    codesign.run("productbuild", "--distribution", str(work / "distribution.xml"), "--package-path", str(work),
                 *signing, str(made))  # fmt: skip
    return named(made, [app / "Contents" / "Resources" / kind for kind in kinds])


def components(app: str) -> list[dict[str, object]]:
    """Return what pkgbuild must know of the app: it goes into its own place, also if another copy lies elsewhere."""
    return [
        {
            "RootRelativeBundlePath": f"Applications/{app}",
            "BundleIsRelocatable": False,
            "BundleIsVersionChecked": False,
            "BundleHasStrictIdentifier": True,
            "BundleOverwriteAction": "upgrade",
        }
    ]


def distribution(version: str, kinds: Sequence[str]) -> bytes:
    """Return the package's distribution file (Apple's Distribution Definition XML Schema)."""
    script = Xml.Element("installer-gui-script", minSpecVersion="2")
    Xml.SubElement(script, "title").text = TITLE
    Xml.SubElement(script, "options", customize="always", hostArchitectures=",".join(CLANG[kind] for kind in kinds))
    Xml.SubElement(
        script, "domains", enable_anywhere="false", enable_currentUserHome="false", enable_localSystem="true"
    )
    versions = Xml.SubElement(Xml.SubElement(script, "volume-check"), "allowed-os-versions")
    Xml.SubElement(versions, "os-version", min=OLDEST)
    outline = Xml.SubElement(script, "choices-outline")
    choices = {
        "program": ("The app and the command llama-appliance", {"enabled": "false"}),
        "service": ("Start with this Mac, also when nobody is logged in", {"selected": "false"}),
    }
    for name, (title, more) in choices.items():
        Xml.SubElement(outline, "line", choice=name)
        starts = {f"start_{key}": value for key, value in more.items()}
        choice = Xml.SubElement(script, "choice", {"id": name, "title": title, **starts})
        Xml.SubElement(choice, "pkg-ref", id=f"{IDENTIFIER}.{name}")
        reference = Xml.SubElement(script, "pkg-ref", id=f"{IDENTIFIER}.{name}", version=version, onConclusion="none")
        reference.text = f"{name}.pkg"
    return Xml.tostring(script, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    main()
