"""The arena's tables as text, drawn from evidence alone: no PyTorch, no GPU."""

import math

from heed.conclusion import PLAIN

WORST = 10  # rows that are shown first
PRECISION_COLUMNS = {"over_fp16": "over fp16", "over_fp16_sm80": "over sm80", "counted_over_fp16": "counted"}  # of quantised calls, where a row has them


def table(header, rows, left=(0,)):
    """Aligned columns, two spaces apart; numbers to the right, columns in `left` to the left."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    drawn = []
    for line in lines:
        cells = [cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))]
        drawn.append("  ".join(cells).rstrip() + "\n")
    return "".join(drawn)


def us_text(us):
    """Three or four digits."""
    return "-" if not us else f"{us:.2f}" if us < 1000 else f"{us:.0f}"


def error_text(error):
    """Of {"max_abs", "pass"}: a number, with FAIL where the gate refuses it."""
    if not error:
        return "-"
    if error.get("rows") == 0 and error.get("max_abs") is None and error.get("pass"):
        return "-"  # it computes something else
    value = "not finite" if error.get("max_abs") is None else f"{error['max_abs']:.1e}"
    return value if error.get("pass", True) else f"{value} FAIL"


def rms_text(error, key="rel_rms"):
    """A relative RMS error of one contender."""
    return f"{error[key]:.1e}" if error and error.get(key) is not None else "-"


def ratio_text(ratio):
    """(value, interval) of {"value", "low", "high"}; empty without one."""
    return (f"{ratio['value']:.3f}", f"[{ratio['low']:.3f}, {ratio['high']:.3f}]") if ratio else ("", "")


def copy_text(copy):
    """What a copy reads and writes a second, and Heed's bytes a second as a share of that."""
    if not copy or "refused" in copy:
        return ["-", "-"] if copy else ["", ""]
    return [f"{copy['bytes'] / copy['us'] * 1e-6:.2f}", f"{100 * copy['share']['value']:.1f}%"]


def kernel_text(names):
    """What a reader needs of kernel names: the first that computes, without its template arguments."""
    names = [name for name in names if not name.startswith(("Memset", "Memcpy"))]
    if not names:
        return ""
    name = names[0].removeprefix("void ").split("<")[0].split("(")[0] or names[0]
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return (name if len(name) <= 48 else name[:45] + "...") + more


def times_of(row):
    """{contender: us} of a row, Heed first."""
    heed = {"heed": row["heed_us"]} if row.get("heed_us") else {}
    return {**heed, **row.get("peers_us", {})}


def names_in(rows):
    """Every contender that appears, Heed first."""
    names = {"heed": None}
    for row in rows:
        for part in ("peers_us", "errors", "refused"):
            names.update(dict.fromkeys(row.get(part, {})))
    return list(names)


def opponent(row):
    """(name, us) of what stands beside Heed: the best SDPA backend, or the plain launches of a row of dependent ones; or ("", 0)."""
    peers = row.get("peers_us", {})
    name = row.get("best_peer") or (PLAIN if PLAIN in peers else "")
    return name, peers.get(name, 0)


def geometric_mean(values):
    """Of positive values; 0 without any."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0


def standings(rows):
    """(ahead, behind, undecided) of the rows with a ratio. Undecided is one whose interval reaches what Heed shows against itself:
    1 plus or minus the A/A spread."""
    ahead = behind = undecided = 0
    for row in rows:
        if not row.get("ratio"):
            continue
        spread = row.get("self_spread") or 0
        low, high = row["ratio_ci"]
        if low > 1 + spread:
            ahead += 1
        elif high < 1 - spread:
            behind += 1
        else:
            undecided += 1
    return ahead, behind, undecided


def summary(rows):
    """One line per workload and mode: Heed against the best SDPA backend, dependent launches against plain ones, and a copy where one
    was timed."""
    lines = []
    copies = any("copy" in row for row in rows)
    dense = any("of_dense" in row for row in rows)
    quantised = any(row.get("is_quantised") for row in rows)
    beside = {key: title for key, title in PRECISION_COLUMNS.items() if any(key in row for row in rows)} if quantised else {}
    opposed = any(opponent(row)[0] for row in rows)
    for row in rows:
        against, its_us = opponent(row)
        heed_us = row.get("heed_us")
        share = f"{100 * row['floor_us'] / heed_us:.0f}%" if heed_us and row.get("floor_us") else "-"
        tflops = f"{row['tflops']:.3g}" if heed_us and row.get("tflops") else "-"
        spread = f"{row['self_spread']:.4f}" if row.get("self_spread") is not None else "-"
        lines.append(
            [row["workload"], row["mode"], us_text(heed_us), tflops, share, error_text(row["errors"].get("heed"))]
            + ([against or "-", us_text(its_us), *ratio_text(row.get("peer_ratios", {}).get(against))] if opposed else [])
            + [spread]
            + (copy_text(row.get("copy")) if copies else [])
            + ([f"{100 * row['of_dense']:.0f}%" if "of_dense" in row else "-"] if dense else [])
            + (precision_text(row, against if opposed else None, beside) if quantised else [])
        )
    header = ["workload", "mode", "heed us", "TFLOP/s", "of floor", "max|error|"]
    header += ["against", "its us", "ratio", "95% interval"] if opposed else []
    header += ["A/A"]
    header += ["copy TB/s", "of copy"] if copies else []
    header += ["of dense"] if dense else []
    header += ["rel. RMS", "outliers", *(["its RMS", "outliers"] if opposed else []), *beside.values()] if quantised else []
    text = table(header, lines, left=(0, 1, 6) if opposed else (0, 1))
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    if ratios:
        ahead, behind, undecided = standings(rows)
        text += (
            f"best {'other' if rows[0].get('is_call') else 'SDPA'} time / heed time: geometric mean {geometric_mean(ratios):.3f} over {len(ratios)} rows; "
            f"heed ahead in {ahead}, behind in {behind}, undecided in {undecided}\n"
        )
    return text


def precision_text(row, against, ratios):
    """What a quantised row adds: total relative RMS errors of Heed and of what stands beside it, if anything does, on N(0, 1) and with outliers, and
    the ratios of these keys, each of Heed's time in 16 bits."""
    errors = [row["errors"].get(name) for name in ("heed", against) if name]
    times = [f"{row[key]:.2f}" if row.get(key) else "-" for key in ratios]
    return [text for error in errors for text in (rms_text(error), rms_text(error, "rel_rms_outliers"))] + times


def worst_first(rows):
    """The rows with the smallest ratios, where there are more than WORST of them, and how many are behind."""
    compared = sorted((row for row in rows if row.get("ratio")), key=lambda row: row["ratio"])
    if len(compared) <= WORST:
        return ""
    lines = [[row["workload"], row["mode"], us_text(row["heed_us"]), opponent(row)[0], *ratio_text(row["peer_ratios"].get(opponent(row)[0]))] for row in compared[:WORST]]
    behind, far_behind = (sum(row["ratio"] < bound for row in compared) for bound in (1, 0.95))
    text = f"the {WORST} smallest ratios of {len(compared)}; {behind} are below 1, {far_behind} below 0.95\n"
    return text + table(["workload", "mode", "heed us", "against", "ratio", "95% interval"], lines, left=(0, 1, 3)) + "\n"


def details(rows):
    """Every contender of every row: time, error, ratio, kernel; or the reason why it did not run."""
    lines = []
    for row in rows:
        first = [row["workload"], row["mode"]]
        times = times_of(row)
        for name in names_in([row]):
            us = times.get(name)
            refused = row.get("refused", {}).get(name)
            error = row["errors"].get(name)
            if us is None and refused is None and error is None:
                continue
            tflops = f"{row['flops'] / us * 1e-6:.3g}" if us and row.get("flops") else "-"
            share = f"{100 * row['floor_us'] / us:.0f}%" if us and row.get("floor_us") else "-"
            rms = rms_text(error)
            checked = str(error["rows"]) if error else "-"
            ratio = ratio_text(row.get("peer_ratios", {}).get(name))
            waiting = [us_text(row.get("synchronised_us", {}).get(name))] if row["mode"] == "eager" else [""]
            said = f"- {refused}" if refused else kernel_text(row.get("kernels", {}).get(name, []))
            lines.append(first + [name, us_text(us)] + waiting + [tflops, share, error_text(error), rms, checked, *ratio, said[:110]])
            first = ["", ""]
    header = ["workload", "mode", "contender", "us", "waiting us", "TFLOP/s", "of floor", "max|error|", "rel RMS", "rows", "ratio", "95% interval", "kernel"]
    if not any(line[4] for line in lines):
        header, lines = header[:4] + header[5:], [line[:4] + line[5:] for line in lines]
        return table(header, lines, left=(0, 1, 2, len(header) - 1))
    return table(header, lines, left=(0, 1, 2, len(header) - 1))


def acceptance(rows):
    """Errors side by side and who passed how many."""
    names = names_in(rows)
    lines = []
    for row in rows:
        cells = []
        for name in names:
            refused = name in row.get("refused", {})
            cells.append("-" if refused else error_text(row["errors"].get(name)))
        limit = next((e["limit"] for e in row["errors"].values()), None)
        lines.append([row["workload"], f"{limit:.1e}" if limit is not None else "-", *cells])
    text = table(["max|error| of", "limit", *names], lines)
    text += "\n"
    counts = []
    for name in names:
        errors = [row["errors"][name] for row in rows if name in row["errors"]]
        failed = [row["workload"] for row in rows if name in row["errors"] and not row["errors"][name]["pass"]]
        refused = sum(name in row.get("refused", {}) for row in rows)
        worst = max((e["max_abs"] for e in errors if e["max_abs"] is not None), default=None)
        verdict = "-" if not errors else "FAIL" if failed else "pass"
        shown = ", ".join(failed[:2]) + (", ..." if len(failed) > 2 else "")
        counts.append([name, verdict, str(len(errors) - len(failed)), str(len(failed)), str(refused), f"{worst:.1e}" if worst is not None else "-", shown])
    return text + table(["contender", "verdict", "passed", "failed", "refused", "worst max|error|", "failed first at"], counts, left=(0, 1, 6))


def reasons(rows):
    """Who did not run and why, each reason once with its count."""
    seen = {}
    for row in rows:
        for name, why in row.get("refused", {}).items():
            seen.setdefault((name, why), []).append(row["workload"])
    return "".join(f"{name} did not run {where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''}: {why}\n" for (name, why), where in seen.items())


def suite_text(evidence, name):
    """Everything that is printed of one suite."""
    rows = [row for row in evidence["rows"] if row["suite"] == name]
    text = f"== {name}: {evidence['suites'][name]['title']}\n\n"
    if not rows:
        return text + "no rows\n"
    if rows[0]["mode"] == "acceptance":
        return text + acceptance(rows) + reasons(rows)
    return text + worst_first(rows) + summary(rows) + "\n" + details(rows)


def brief(evidence, name):
    """A suite's rows without the single contenders: what a document quotes."""
    rows = [row for row in evidence["rows"] if row["suite"] == name]
    return acceptance(rows) if rows and rows[0]["mode"] == "acceptance" else summary(rows)


def heading(evidence):
    """Where and with what the numbers were taken."""
    peer = evidence["peer"]
    text = f"device    {evidence['device']} ({evidence['arch']}, driver {evidence['driver']})\n"
    text += f"PyTorch   {peer.get('torch') or '-'}" + (f", cuDNN {peer['cudnn']}" if peer.get("cudnn") else "") + "\n"
    text += f"heed      {evidence['heed']}, sources {evidence['source_digest']}\n"
    clocks = evidence["clocks_mhz"]
    if clocks.get("before"):
        text += f"clocks    {clocks['before']} MHz before, {clocks.get('after', 0)} MHz after\n"
    for name, why in evidence.get("skipped", {}).items():
        text += f"skipped   {name}: {why}\n"
    if not evidence.get("complete"):
        text += "INCOMPLETE: the measurement was stopped before its end\n"
    return text + "ratio is the contender's time / heed's, paired; errors are against float64\n"


def everything(evidence):
    """The whole printed text."""
    return heading(evidence) + "".join("\n" + suite_text(evidence, name) for name in evidence["suites"])
