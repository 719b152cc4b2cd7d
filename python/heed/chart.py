"""Bar charts as SVG, written by hand: one group of bars per workload, one colour per contender."""

import math
from html import escape

from heed.tables import names_in, times_of

COLOURS = ("#1f6f4a", "#b9c2cc", "#5b8db8", "#d99a4e", "#a45a7a", "#7d7a9c", "#8a8f3c", "#4aa3a2", "#c96a5a", "#6b5b4d", "#9fb56b", "#444b54")
BAR, GAP, LEFT, RIGHT, LINE = 11, 12, 330, 90, 16
WIDTH = 1000


def value_of(row, name, unit):
    """What a bar shows: us, TFLOP/s, or max|error|; None without a bar, also for what is not finite."""
    if unit == "error":
        error = row["errors"].get(name)
        value = error["max_abs"] if error else None
        return value if value is not None and math.isfinite(value) else None
    us = times_of(row).get(name)
    if not us or not math.isfinite(us):
        return None
    value = row["flops"] / us * 1e-6 if unit == "TFLOP/s" else us
    return value if math.isfinite(value) else None


def nice_step(top):
    """A distance of grid lines: 1, 2 or 5 times a power of ten, at most eight of them. `top` is finite and above 0."""
    if not (math.isfinite(top) and top > 0):
        raise ValueError(f"there are no grid lines up to {top}")
    power = 10.0 ** max(math.floor(math.log10(top)) - 1, -300)  # a tenth of top at most: the first step that suffices is 1 to 50 times that
    return next(step for factor in (1, 2, 5, 10, 20, 50) if top / (step := power * factor) <= 8)


def bar_chart(title, subtitle, rows, unit, ceiling=None):
    """The whole SVG. `rows` are evidence rows; `ceiling` (in `unit`) is drawn as a line with its value.

    Bars beyond four times the median are cut off at the edge and carry their number, so that one slow contender does not
    flatten the others.
    """
    names = names_in(rows)
    groups = [(f"{row['workload']}  {row['mode']}", [(n, value_of(row, n, unit)) for n in names]) for row in rows]
    groups = [(label, [(n, v) for n, v in bars if v is not None]) for label, bars in groups]
    groups = [(label, bars) for label, bars in groups if bars]
    values = sorted(v for _, bars in groups for _, v in bars)
    top = values[-1] if values else 1.0
    if unit != "TFLOP/s" and values:
        top = min(top, 4 * values[len(values) // 2])
    top = max(top, (ceiling or 0) * 1.04) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / top
    legend = -(-len(names) // 6)
    head = 72 + legend * LINE
    height = head + sum(len(bars) * BAR + GAP for _, bars in groups) + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="16" font-weight="bold">{escape(title)}</text>',
        f'<text x="16" y="42" fill="#555">{escape(subtitle)}</text>',
    ]
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    for i, name in enumerate(names):
        x, y = 16 + i % 6 * 160, 50 + i // 6 * LINE
        out.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour[name]}"/><text x="{x + 14}" y="{y + 9}">{escape(name)}</text>')
    step = nice_step(top)
    bottom = height - 22
    for i in range(int(top / step) + 1):
        x = LEFT + i * step * scale
        out.append(f'<line x1="{x:.1f}" y1="{head - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#e3e3e3"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">{i * step:g}</text>')
    y = head
    for label, bars in groups:
        middle = y + len(bars) * BAR / 2 + 4
        out.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        for name, value in bars:
            width = min(value, top) * scale
            out.append(
                f'<rect class="bar" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{colour[name]}">'
                f"<title>{escape(f'{label} {name}: {value:.4g} {unit}')}</title></rect>"
            )
            weight = ' font-weight="bold"' if name == "heed" else ""
            cut = " (cut)" if value > top else ""
            out.append(f'<text x="{LEFT + width + 4:.1f}" y="{y + BAR - 3}" font-size="9"{weight}>{value:.3g}{cut}</text>')
            y += BAR
        y += GAP
    if ceiling:
        x = LEFT + ceiling * scale
        out.append(f'<line class="ceiling" x1="{x:.1f}" y1="{head - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#c0392b" stroke-dasharray="5 3"/>')
        out.append(f'<text x="{x - 4:.1f}" y="{head - 9}" text-anchor="end" fill="#c0392b">ceiling {ceiling:.4g} {unit}</text>')
    out.append(f'<text x="{WIDTH - 16}" y="{bottom + 14}" text-anchor="end" fill="#555">{escape(unit)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def suite_chart(evidence, name):
    """The chart of one suite of an evidence file; throughput's ceiling is the device's peak at its highest clock."""
    suite = evidence["suites"][name]
    rows = [row for row in evidence["rows"] if row["suite"] == name]
    ceiling = None
    if suite["unit"] == "TFLOP/s":
        ceiling = max((row.get("peak_flops") or 0 for row in rows), default=0) * 1e-12 or None
    unit = "max|error|" if suite["unit"] == "error" else suite["unit"]
    better = "higher is better" if suite["unit"] == "TFLOP/s" else "lower is better"
    subtitle = f"{suite['title']}; {unit}, {better}; {evidence['device']}, PyTorch {evidence['peer'].get('torch') or '-'}"
    return bar_chart(f"Heed arena: {name}", subtitle, rows, suite["unit"], ceiling)
