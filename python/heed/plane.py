"""The plane of speed and error as SVG: what a contender computes a second, and how far off it is, for each head dim and mask."""

import math
from html import escape

from heed.chart import COLOURS, nice_step
from heed.tables import names_in, times_of

WIDTH, PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP = 1000, 272, 240, 56, 84, 48
ERRORS = {"rel_rms": "N(0, 1)", "rel_rms_outliers": "one number in 1000 is an outlier"}


def points_of(rows, name, error):
    """[(length, TFLOP/s, relative RMS error)] of a contender, in the order of lengths."""
    points = []
    for row in rows:
        us, off = times_of(row).get(name), (row["errors"].get(name) or {}).get(error)
        if us and off and math.isfinite(us) and math.isfinite(off) and off > 0:
            points.append((row["length"], row["flops"] / us * 1e-6, off))
    return sorted(points)


def _panel(at_x, at_y, title, points, colour, error):
    """One panel: lines of points by contender. Errors are on a logarithmic axis of whole powers of ten."""
    everything = [point for of_one in points.values() for point in of_one]
    out = [f'<text x="{at_x}" y="{at_y - 8}" font-weight="bold">{escape(title)}</text>']
    out.append(f'<rect x="{at_x}" y="{at_y}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" fill="none" stroke="#999"/>')
    if not everything:
        return [*out, f'<text x="{at_x + 8}" y="{at_y + 20}" fill="#555">nothing was measured</text>']
    fastest = max(tflops for _, tflops, _ in everything) * 1.08
    low = math.floor(math.log10(min(off for *_, off in everything)))
    high = max(low + 1, math.ceil(math.log10(max(off for *_, off in everything))))
    step = nice_step(fastest)

    def place(tflops, off):
        return at_x + tflops / fastest * PANEL_WIDTH, at_y + (high - math.log10(off)) / (high - low) * PANEL_HEIGHT

    for i in range(int(fastest / step) + 1):
        x, _ = place(i * step, 1.0)
        out.append(f'<line x1="{x:.1f}" y1="{at_y}" x2="{x:.1f}" y2="{at_y + PANEL_HEIGHT}" stroke="#e3e3e3"/>')
        out.append(f'<text x="{x:.1f}" y="{at_y + PANEL_HEIGHT + 14}" text-anchor="middle" fill="#555">{i * step:g}</text>')
    for power in range(low, high + 1):
        _, y = place(0, 10.0**power)
        out.append(f'<line x1="{at_x}" y1="{y:.1f}" x2="{at_x + PANEL_WIDTH}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        out.append(f'<text x="{at_x - 4}" y="{y + 4:.1f}" text-anchor="end" fill="#555">1e{power}</text>')
    for name, of_one in points.items():
        places = [place(tflops, off) for _, tflops, off in of_one]
        if len(places) > 1:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour[name]}" stroke-opacity="0.5"/>')
        for (length, tflops, off), (x, y) in zip(of_one, places):
            said = escape(f"{name}, length {length}: {tflops:.4g} TFLOP/s, relative RMS {off:.2e} ({ERRORS[error]})")
            out.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="{2 + math.log2(max(length, 2)) / 4:.1f}" fill="{colour[name]}"><title>{said}</title></circle>')
    return out


def plane_chart(evidence, name, error="rel_rms"):
    """The SVG of a suite of quantised calls: a panel for each head dim and mask, a line for each contender, a point for each length, the longer
    the larger. Right is faster, down is more exact."""
    rows = [row for row in evidence["rows"] if row["suite"] == name]
    names = names_in(rows)
    colour = {contender: COLOURS[i % len(COLOURS)] for i, contender in enumerate(names)}
    panels = sorted({(bool(row["causal"]), row["dim"]) for row in rows})
    columns = max(1, min(3, len({dim for _, dim in panels})))
    lines = -(-len(panels) // columns)
    height = TOP + lines * (PANEL_HEIGHT + GAP) + 24
    subtitle = f"{evidence['suites'][name]['title']}; TFLOP/s against relative RMS error to float64 of the values before quantising, {ERRORS[error]}"
    where = f"{subtitle}; {evidence['device']}, PyTorch {evidence['peer'].get('torch') or '-'}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="16" font-weight="bold">Heed arena: {escape(name)}, speed and error</text>',
        f'<text x="16" y="42" fill="#555">{escape(where)}</text>',
    ]
    for i, contender in enumerate(names):
        x = 16 + i * 160
        out.append(f'<rect x="{x}" y="50" width="10" height="10" fill="{colour[contender]}"/><text x="{x + 14}" y="59">{escape(contender)}</text>')
    for i, (causal, dim) in enumerate(panels):
        mine = [row for row in rows if (bool(row["causal"]), row["dim"]) == (causal, dim)]
        points = {contender: of_one for contender in names if (of_one := points_of(mine, contender, error))}
        x, y = LEFT + i % columns * (PANEL_WIDTH + GAP), TOP + i // columns * (PANEL_HEIGHT + GAP)
        out += _panel(x, y, f"head dim {dim}, {'causal' if causal else 'full'}", points, colour, error)
    out.append(f'<text x="{WIDTH - 16}" y="{height - 8}" text-anchor="end" fill="#555">TFLOP/s to the right, relative RMS error upwards; larger points are longer sequences</text>')
    return "\n".join(out) + "\n</svg>\n"
