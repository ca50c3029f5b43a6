"""The reports' style sheet. Colours are chosen for a contrast of at least 4.5 in both schemes."""

STYLE = """
:root{--bg:#fff;--fg:#1b1f24;--soft:#57606a;--line:#d0d7de;--card:#f6f8fa;--accent:#0a5cc2;--go:#116329;--gobg:#dafbe1;--no:#a40e26;--nobg:#ffe8e6;
--warn:#7d4e00;--warnbg:#fff4d1;--info:#0a5cc2;--infobg:#ddf0ff;--t1:#e7edf4;--t2:#fdf1dc;--hit:#ffd33d;--c1:#0a5cc2;--c2:#1a7f37;--c3:#bf8700;--c4:#a40e26;--c5:#6e7781}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9da7b3;--line:#3d444d;--card:#161b22;--accent:#79b8ff;--go:#56d364;--gobg:#0f2a17;
--no:#ff8a80;--nobg:#3a1417;--warn:#e3b341;--warnbg:#2e2410;--info:#79b8ff;--infobg:#0f2540;--t1:#1f2a37;--t2:#332a1a;--hit:#8a6d00;
--c1:#58a6ff;--c2:#3fb950;--c3:#d29922;--c4:#f85149;--c5:#8b949e}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
main{max-width:72rem;margin:0 auto;padding:0 1rem 4rem}
nav{position:sticky;top:0;background:var(--bg);border-bottom:1px solid var(--line);z-index:1}
nav ul{display:flex;gap:1rem;margin:0 auto;padding:.5rem 1rem;max-width:72rem;list-style:none;overflow-x:auto;white-space:nowrap}
a{color:var(--accent)}nav a{text-decoration:none;font-size:.9rem}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px;border-radius:2px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
section{scroll-margin-top:3rem}
h1{font-size:1.4rem;margin:.2rem 0 .6rem}h2{font-size:1.25rem;margin:2.5rem 0 .75rem}h3{font-size:1rem;margin:1.5rem 0 .5rem}
p{max-width:46rem}.soft{color:var(--soft)}.small{font-size:.875rem}
.verdict{border:1px solid var(--line);border-left:.6rem solid var(--go);border-radius:.5rem;padding:1rem 1.25rem;margin-top:1rem;background:var(--gobg)}
.verdict.no-go{border-left-color:var(--no);background:var(--nobg)}
.verdict strong.word{font-size:2rem;line-height:1.1;color:var(--go);text-transform:uppercase;letter-spacing:.03em}
.verdict.no-go strong.word{color:var(--no)}.verdict ul{margin:.5rem 0 0;padding-left:1.2rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1rem 0;padding:0;list-style:none}
.cards li{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.cards b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}.cards span{font-size:.85rem;color:var(--soft)}
.scroll{overflow-x:auto;margin:.75rem 0;border:1px solid var(--line);border-radius:.5rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}caption{text-align:left;padding:.5rem .75rem;color:var(--soft)}
th,td{padding:.4rem .75rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}tr:last-child td{border-bottom:0}
th{background:var(--card);vertical-align:bottom;overflow-wrap:normal}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:3px solid var(--accent)}
th[aria-sort=ascending] button::after{content:" \\25B2"}th[aria-sort=descending] button::after{content:" \\25BC"}
td:not(.n){min-width:4.5rem}td:first-child{min-width:9rem}td:last-child:not(.n){min-width:11rem}td .what{display:block;min-width:14rem}
.badge{display:inline-block;border-radius:1rem;padding:0 .55rem;font-size:.8rem;font-weight:600;border:1px solid currentColor;white-space:nowrap}
.error,.no{color:var(--no);background:var(--nobg)}.warn{color:var(--warn);background:var(--warnbg)}.info{color:var(--info);background:var(--infobg)}
.ok{color:var(--go);background:var(--gobg)}.off{color:var(--soft)}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85em}
.filter{display:flex;flex-wrap:wrap;gap:.75rem;align-items:end;margin:.75rem 0}.filter label{display:grid;gap:.2rem;font-size:.875rem}
input,select{font:inherit;padding:.35rem .5rem;border:1px solid var(--soft);border-radius:.35rem;background:var(--bg);color:var(--fg);min-width:0;max-width:100%}
details{border:1px solid var(--line);border-radius:.5rem;margin:.5rem 0;padding:.1rem .75rem}summary{cursor:pointer;padding:.4rem 0}
details[open]>summary{border-bottom:1px solid var(--line);margin-bottom:.5rem}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0;font-size:.9rem}.facts dt{color:var(--soft)}.facts dd{margin:0}
.seg{border-left:.25rem solid var(--line);padding:.1rem .6rem;margin:.35rem 0}.seg>small{color:var(--soft);display:block}
.seg.reasoning{border-left-color:var(--c5)}.seg.content{border-left-color:var(--c1)}.seg.call_args,.seg.call_name,.seg.call_id{border-left-color:var(--c2)}
.toks{white-space:pre-wrap;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85rem;line-height:1.7}
.toks i{font-style:normal;background:var(--t1);border-radius:.15rem}.toks i:nth-of-type(even){background:var(--t2)}
.toks i.s{background:none;border:1px solid var(--c3);border-radius:.6rem;padding:0 .4rem;color:var(--warn);font-weight:600}
.toks i.b{outline:1px dashed var(--c4);outline-offset:-1px}.toks i.x{background:var(--nobg);color:var(--no);border:1px solid var(--no)}
.toks i.h{background:var(--hit);outline:2px solid var(--c4)}
pre{white-space:pre-wrap;background:var(--card);border-radius:.35rem;padding:.5rem .6rem;margin:.3rem 0;font-size:.85rem}
pre.old{background:var(--nobg)}pre.new{background:var(--gobg)}
svg{width:100%;max-width:40rem;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
svg .axis{stroke:var(--line)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{fill:var(--c5)}
.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}.line{fill:none;stroke-width:2}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.5rem}figure{margin:0}figcaption{font-weight:600;margin-bottom:.25rem}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:.15rem;margin-right:.3rem;vertical-align:-.05rem}
.key.f1{background:var(--c1)}.key.f2{background:var(--c2)}.key.f3{background:var(--c3)}.key.f4{background:var(--c4)}.key.f5{background:var(--c5)}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:.5rem 0;list-style:none;font-size:.875rem}
[hidden]{display:none!important}
@media(max-width:40rem){th,td{padding:.35rem .4rem}td:not(.n):first-child{min-width:0}td .what{min-width:9.5rem}.verdict{padding:.75rem 1rem}.facts{grid-template-columns:1fr}.facts dd{margin-bottom:.4rem}}
@media print{nav,.filter{display:none}details{break-inside:avoid}}
"""
