"""What a file of evidence must hold before anything is drawn of it: a broken file is answered with the place that is wrong."""

import json
import math

UNITS = ("us", "TFLOP/s", "error")
TOP = {"device": str, "arch": str, "driver": str, "clocks_mhz": dict, "heed": str, "source_digest": str, "peer": dict, "suites": dict, "rows": list}
ROW = {"suite": str, "workload": str, "mode": str, "flops": float, "errors": dict}
OPTIONAL_NUMBERS = ("heed_us", "tflops", "floor_us", "self_spread", "ratio", "peak_flops", "over_fp16", "over_fp16_sm80", "counted_over_fp16")
TIMES = ("heed_us", "floor_us", "tflops", "ratio", "flops")  # of those that may not be zero or less
NAMES = {str: "text", dict: "an object", list: "a list", float: "a number", bool: "true or false", int: "a whole number"}


class Broken(Exception):
    """One sentence that names the place."""


def parse(text):
    """The value of a JSON text. Raises Broken for a text that is none, and for numbers that are none: NaN and infinity."""

    def refuse(word):
        raise Broken(f"holds {word}, which is no number")

    def finite(word):
        return float(word) if math.isfinite(float(word)) else refuse(word)

    def short(word):
        return int(word) if len(word) < 20 else refuse(f"{word[:20]}...")

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite, parse_int=short)
    except RecursionError:
        raise Broken("is no JSON: it is nested too deep") from None
    except ValueError as error:
        raise Broken(f"is no JSON: {error}") from None


def is_a(value, kind):
    """Whether a value is of a kind of NAMES; float takes whole numbers, none takes a truth value for a number."""
    if kind in (float, int):
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind)


def want(where, value, kind, positive=False):
    """Raises Broken unless the value is of the kind."""
    if not is_a(value, kind):
        raise Broken(f"has {json.dumps(value)[:40]} at {where}; {NAMES[kind]} is needed")
    if positive and value <= 0:
        raise Broken(f"has {value} at {where}; a number above 0 is needed")


def want_fields(where, value, fields):
    """Raises Broken unless the value is an object with all fields."""
    want(where, value, dict)
    for key, kind in fields.items():
        if key not in value:
            raise Broken(f"lacks {where}.{key}" if where else f"lacks {key}")
        want(f"{where}.{key}" if where else key, value[key], kind)


def want_ratio(where, value):
    """A ratio with its interval."""
    want_fields(where, value, {"value": float, "low": float, "high": float})
    for key in ("value", "low", "high"):
        want(f"{where}.{key}", value[key], float, positive=True)


def want_each(where, row, key, kind, positive=False):
    """Raises Broken unless row[key], where there is one, is an object of such values."""
    if key in row:
        place = f"{where}.{key}" if where else key
        want(place, row[key], dict)
        for name, value in row[key].items():
            want(f"{place}.{name}", value, kind, positive)


def check_error(where, error):
    """Errors of one contender; max_abs and rel_rms are null where an output is not finite."""
    want_fields(where, error, {"pass": bool, "limit": float, "rows": int})
    for key in ("max_abs", "rel_rms"):
        if key not in error:
            raise Broken(f"lacks {where}.{key}")
        if error[key] is not None:
            want(f"{where}.{key}", error[key], float)
    if error.get("rel_rms_outliers") is not None:
        want(f"{where}.rel_rms_outliers", error["rel_rms_outliers"], float)


def check_row(where, row, suites):
    """Raises Broken for a row that tables or charts could not be drawn of."""
    want_fields(where, row, ROW)
    if row["suite"] not in suites:
        raise Broken(f'has a row of the suite "{row["suite"]}" at {where}, which is none of its suites')
    for key in OPTIONAL_NUMBERS + ("flops",):
        if row.get(key) is not None:
            want(f"{where}.{key}", row[key], float, positive=key in TIMES)
    for name, error in row["errors"].items():
        check_error(f"{where}.errors.{name}", error)
    want_each(where, row, "peers_us", float, positive=True)
    want_each(where, row, "synchronised_us", float)
    want_each(where, row, "refused", str)
    want_each(where, row, "kernels", list)
    for name, kernels in row.get("kernels", {}).items():
        for kernel in kernels:
            want(f"{where}.kernels.{name}", kernel, str)
    want_each(where, row, "peer_ratios", dict)
    for name, ratio in row.get("peer_ratios", {}).items():
        want_ratio(f"{where}.peer_ratios.{name}", ratio)
    if row.get("best_peer") is not None:
        want(f"{where}.best_peer", row["best_peer"], str)
    if row.get("ratio") is not None:
        interval = row.get("ratio_ci")
        want(f"{where}.ratio_ci", interval, list)
        if len(interval) != 2:
            raise Broken(f"has {len(interval)} numbers at {where}.ratio_ci; two are needed")
        for bound in interval:
            want(f"{where}.ratio_ci", bound, float, positive=True)
    copy = row.get("copy")
    if copy is not None:
        want(f"{where}.copy", copy, dict)
        if copy and "refused" not in copy:
            want_fields(f"{where}.copy", copy, {"bytes": float, "us": float, "share": dict})
            want(f"{where}.copy.us", copy["us"], float, positive=True)
            want_ratio(f"{where}.copy.share", copy["share"])


def check(evidence):
    """Raises Broken unless tables and charts can be drawn of the evidence of an arena."""
    want_fields("", evidence, TOP)
    try:
        json.dumps(evidence, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Broken("holds half a character, which cannot be printed") from None
    want_each("", evidence, "clocks_mhz", float)
    for name, suite in evidence["suites"].items():
        want_fields(f"suites.{name}", suite, {"title": str, "unit": str})
        if suite["unit"] not in UNITS:
            raise Broken(f'has the unit "{suite["unit"]}" at suites.{name}; one of {", ".join(UNITS)} is needed')
    want_each("", evidence, "skipped", str)
    for number, row in enumerate(evidence["rows"]):
        check_row(f"rows[{number}]", row, evidence["suites"])
