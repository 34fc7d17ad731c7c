"""How the page looks: one style sheet, light and dark, nothing from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #667085; --paper: #f6f7f9; --card: #fff; --line: #e3e6ec;
  --blue: #3563e9; --amber: #b25e09; --amber-bg: #fff6e5; --red: #b42318; --red-bg: #fef1f0; --green: #067647;
  --c0: #3563e9; --c1: #12a594; --c2: #8e4ec6; --c3: #e5484d; --c4: #f5a524; --c5: #889096; --c6: #46a758; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --paper: #11141a; --card: #191d25;
  --line: #2a303c; --blue: #7c9cff; --amber: #f5b455; --amber-bg: #2b2313; --red: #ff8a80; --red-bg: #2d1917;
  --green: #5bd19b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 80px; }
h1 { font-size: 24px; margin: 0 0 2px; } h2 { font-size: 18px; margin: 36px 0 10px; }
h3 { font-size: 15px; margin: 18px 0 6px; }
.soft { color: var(--soft); } .small { font-size: 13px; } a { color: var(--blue); text-decoration: none; }
code, pre, .mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12.5px; }
pre { margin: 0; padding: 12px 14px; overflow: auto; background: var(--paper); border-radius: 8px; max-height: 480px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px;
  margin: 12px 0; }
.card.warn { border-left: 4px solid var(--amber); } .card.bad { border-left: 4px solid var(--red); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px; margin: 18px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 12px 16px; }
.tile b { display: block; font-size: 21px; line-height: 1.3; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tile.warn b { color: var(--amber); } .tile.bad b { color: var(--red); }
.badge { display: inline-block; padding: 1px 8px; border-radius: 99px; font-size: 12px;
  border: 1px solid var(--line); }
.badge.warn { color: var(--amber); background: var(--amber-bg); border-color: transparent; }
.badge.bad { color: var(--red); background: var(--red-bg); border-color: transparent; }
.badge.good { color: var(--green); }
.fix { margin-top: 6px; } .fix b { color: var(--green); }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; background: var(--line); margin: 8px 0 4px; }
.bar i { display: block; min-width: 2px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 12.5px; color: var(--soft); }
.legend i { display: inline-block; width: 9px; height: 9px; border-radius: 3px; margin-right: 5px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } .scroll { overflow-x: auto; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line);
  padding: 4px 10px 4px 0; }
td { border-bottom: 1px solid var(--line); padding: 4px 10px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td .meter { display: inline-block; height: 8px; border-radius: 4px; background: var(--c1); margin-right: 6px; }
details { border-top: 1px solid var(--line); } details > summary { cursor: pointer; padding: 8px 0; font-weight: 600; }
details[open] > *:last-child { margin-bottom: 12px; } summary .soft { font-weight: 400; }
td details { border: 0; } td details:not([open]) { display: inline-block; margin: 0 6px 0 8px; }
td:first-child, td code:only-child { overflow-wrap: normal; white-space: nowrap; }
td pre { max-width: 540px; }
td details > summary { padding: 0; font-weight: 400; color: var(--blue); }
.line { display: grid; grid-template-columns: 220px 1fr; gap: 12px; padding: 6px 0;
  border-bottom: 1px solid var(--line); }
.line:last-child { border: 0; } .chips { display: flex; flex-wrap: wrap; gap: 4px 6px; margin-top: 3px; }
.chip { font-size: 12px; padding: 0 7px; border-radius: 6px; background: var(--paper); }
.chip.kernel { background: #12a5941f; color: var(--c1); } .chip.call { background: #3563e91f; color: var(--blue); }
.chip.back { background: #8e4ec61f; color: var(--c2); }
"""
