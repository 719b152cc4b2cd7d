/// The style sheet of a run's page.
#pragma once

namespace heed::report {

/// Light by default, dark where the reader's system is. Series colours keep a contrast of 3:1 and more to their
/// background in both and stay apart under red-green blindness (after Okabe and Ito).
inline constexpr const char* kStyle = R"css(
:root{--paper:#fff;--raised:#f5f6f8;--ink:#1a1d21;--soft:#5a626d;--rule:#d9dde3;--accent:#0b63c5;--good:#0b7a53;--bad:#b3261e;
--s0:#5a626d;--s1:#c25700;--s2:#0b63c5;--s3:#00806a;--s4:#b0347f;--s5:#7d6200;--s6:#6a3fc0;--box:#cfe0f6}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--raised:#1e2329;--ink:#e9ebee;--soft:#a2abb6;--rule:#363d46;--accent:#74b0ff;
--good:#58c99a;--bad:#ff8f85;--s0:#a2abb6;--s1:#f59b4c;--s2:#74b0ff;--s3:#3fcbb0;--s4:#ee8cc4;--s5:#dcc04f;--s6:#b79cff;--box:#27405f}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif}
main{max-width:1110px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:44px 0 10px;padding-top:14px;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:22px 0 6px}
p{margin:6px 0 12px;max-width:78ch}
.soft,figcaption,.legend{color:var(--soft);font-size:.9rem}
.notice{border-left:4px solid var(--s1);background:var(--raised);padding:10px 14px;margin:16px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:20px 0 6px;padding:0;list-style:none}
.tiles li{background:var(--raised);border-radius:8px;padding:12px 16px}
.tiles b{display:block;font-size:1.65rem;line-height:1.25;font-variant-numeric:tabular-nums}
.tiles span{display:block;color:var(--soft);font-size:.88rem}
figure{margin:10px 0 18px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));gap:8px 28px;align-items:start}
.scroll{overflow-x:auto}
.wide .scroll svg{display:block;width:100%;min-width:900px}
.narrow .scroll svg{display:block;width:100%;min-width:460px;max-width:560px}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;margin:4px 0}
.legend svg{vertical-align:-2px}
.key{display:inline-block;width:18px;height:0;vertical-align:4px;border-top:2px solid}
.best-key{border-color:var(--accent)}.base-key{border-top-style:dashed;border-color:var(--soft)}
.ring-key{width:13px;height:13px;border:2px solid var(--accent);border-radius:50%;vertical-align:-2px}
.box-key{height:12px;border:0;background:var(--box);vertical-align:-1px}
svg text{fill:var(--ink);font-size:13px;font-family:inherit}
svg .tick,svg .small{font-size:12px}svg .tick{fill:var(--soft)}
svg .plain{fill:var(--soft);font-size:14px}svg .strong{font-weight:600;font-size:15px}
.grid{stroke:var(--rule);stroke-width:1}.base-line{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:5 4}
.best{fill:none;stroke:var(--accent);stroke-width:2}.whisker{stroke:var(--soft);stroke-width:1}
.interval{stroke:var(--ink);stroke-width:2.5;stroke-linecap:round}.median{stroke:var(--ink);stroke-width:2.5}
.ring{fill:none;stroke:var(--accent);stroke-width:2}.refused{stroke:var(--bad);fill:none}
.stroked{stroke-width:2;fill:none}.box{fill:var(--box)}.bar{fill:var(--s0)}.bar-champion{fill:var(--accent)}
.bar-ok{fill:var(--good)}.bar-refused{fill:var(--bad)}
.node{fill:var(--raised);stroke:var(--rule);stroke-width:1}.champion-node{stroke:var(--accent);stroke-width:2.5}
.donated-node{stroke-dasharray:4 3}.edge{stroke:var(--soft);stroke-width:1.5}.donated{stroke-dasharray:4 3}.arrow{fill:var(--soft)}
.dot{fill-opacity:.6}
.series-0{fill:var(--s0);stroke:var(--s0)}.series-1{fill:var(--s1);stroke:var(--s1)}.series-2{fill:var(--s2);stroke:var(--s2)}
.series-3{fill:var(--s3);stroke:var(--s3)}.series-4{fill:var(--s4);stroke:var(--s4)}.series-5{fill:var(--s5);stroke:var(--s5)}
.series-6{fill:var(--s6);stroke:var(--s6)}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums;margin:6px 0 14px}
caption{text-align:left;color:var(--soft);padding:0 0 4px}
th,td{padding:5px 16px 5px 0;text-align:left;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:600}td.n,th.n{text-align:right}td.n{white-space:nowrap}
tr.champion td{font-weight:600}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace;font-size:.88em}
pre{background:var(--raised);padding:12px 14px;border-radius:8px;overflow-x:auto;margin:8px 0 14px}
td code{overflow-wrap:anywhere}
details{margin:10px 0}summary{cursor:pointer;color:var(--accent)}
@media (max-width:600px){main{padding:18px 14px 40px}h1{font-size:1.35rem}.tiles{grid-template-columns:1fr 1fr}.tiles b{font-size:1.25rem}}
@media print{.scroll{overflow:visible}}
)css";

}  // namespace heed::report
