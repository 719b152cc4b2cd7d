"""What a row of evidence says, from its readings alone: no PyTorch, no GPU."""


PLAIN = "heed_plain"  # in rows of dependent launches, the same variant launched plainly


def conclude(row):
    """Names the SDPA call that is hardest to beat, every backend by force and the plain call, and Heed's ratio to it.

    That is the one with the lowest ratio: both sides of a ratio were read by turns, while times of different pairs were read in
    different states of the machine. Where Heed was not timed, it is the one with the lowest time.
    """
    peers = {n: us for n, us in row.get("peers_us", {}).items() if n.startswith("sdpa_")}
    ratios = {n: row["peer_ratios"][n] for n in peers if n in row.get("peer_ratios", {})}
    if ratios:
        best = row["best_peer"] = min(ratios, key=lambda name: ratios[name]["value"])
        row |= {"ratio": ratios[best]["value"], "ratio_ci": [ratios[best]["low"], ratios[best]["high"]]}
    elif peers:
        row["best_peer"] = min(peers, key=peers.get)
    if row.get("heed_us"):
        row["tflops"] = row["flops"] / row["heed_us"] * 1e-6
