"""What a row of evidence says, from its readings alone: no PyTorch, no GPU."""


DENSE = "heed_dense"  # Heed without a call's features
HALF = "heed_fp16"  # Heed on the same tensors in 16 bits, beside quantised ones
HALF_SM80 = "heed_fp16_sm80"  # the same by fwd_sm80
COUNTED = "heed_counted"  # the same as quantised, with the quantisation in the time
PLAIN = "heed_plain"  # in rows of dependent launches, the same variant launched plainly


def conclude(row):
    """Names the SDPA call that is hardest to beat, every backend by force and the plain call, and Heed's ratio to it.

    Of calls with features, which SDPA has in part, all others take part; Heed's own dense call beside one is no opponent, and says how
    many of its operations a second are left (`of_dense`). Of quantised calls, Heed in 16 bits is none either: `over_fp16` is how many times as long
    it takes, `over_fp16_sm80` the same of fwd_sm80, `counted_over_fp16` that of `over_fp16` where quantising is counted.

    That is the one with the lowest ratio: both sides of a ratio were read by turns, while times of different pairs were read in
    different states of the machine. Where Heed was not timed, it is the one with the lowest time.
    """
    is_opponent = (lambda name: not name.startswith("heed")) if row.get("is_call") else (lambda name: name.startswith("sdpa_"))
    peers = {n: us for n, us in row.get("peers_us", {}).items() if is_opponent(n)}
    ratios = {n: row["peer_ratios"][n] for n in peers if n in row.get("peer_ratios", {})}
    if ratios:
        best = row["best_peer"] = min(ratios, key=lambda name: ratios[name]["value"])
        row |= {"ratio": ratios[best]["value"], "ratio_ci": [ratios[best]["low"], ratios[best]["high"]]}
    elif peers:
        row["best_peer"] = min(peers, key=peers.get)
    if row.get("heed_us"):
        row["tflops"] = row["flops"] / row["heed_us"] * 1e-6
    dense = row.get("peer_ratios", {}).get(DENSE)
    if dense:
        row["of_dense"] = dense["value"] * row["flops"] / row["dense_flops"]
    half, counted = (row.get("peer_ratios", {}).get(name) for name in (HALF, COUNTED))
    if HALF_SM80 in row.get("peer_ratios", {}):
        row["over_fp16_sm80"] = row["peer_ratios"][HALF_SM80]["value"]
    if half:
        row["over_fp16"] = half["value"]
        if counted:
            row["counted_over_fp16"] = half["value"] / counted["value"]
