"""The contest of calls with features: as heed.contest, with tensors and references of heed.feature_calls."""

import torch

from heed import contenders as field
from heed import feature_calls
from heed.conclusion import conclude
from heed.contest import KERNEL_NAME_CHARACTERS, Contest


class FeatureContest(Contest):
    """Prepares, judges and times contenders of heed.feature_calls."""

    def rows(self, suite, call, facts):
        """Evidence rows of a call, one for each of the suite's modes. `facts` is heed build's entry for its text."""
        seed = self.settings.seed
        self.tensors = tensors = feature_calls.CallTensors(call, self.device, seed)
        with torch.no_grad():
            first = self.make_sets(call, 1)[0]
            reference = feature_calls.Reference(tensors, *first, seed)
            calls, errors, kernels, refused = {}, {}, {}, {}
            for contender in [self.heed, *self.others]:
                name = contender.name
                try:
                    run = contender.prepare(tensors)
                    o = field.first_call(run, first, self.synchronize)
                    nothing = {"max_abs": None, "rel_rms": None, "rows": 0, "limit": reference.limit, "pass": True}
                    errors[name] = nothing if getattr(run, "other_result", False) else reference.judge(o)
                    del o
                    kernels[name] = [n[:KERNEL_NAME_CHARACTERS] for n in field.kernel_names(run, *first)]
                    calls[name] = run
                except Exception as error:  # each refuses in its own way; the reason stands in the table
                    refused[name] = field.reason_of(error)
            operations = 4 * call.dim
            for mode in suite.modes:
                row = {"suite": suite.name, "workload": call.name, "causal": call.masked, "mode": mode, "is_call": True}
                row |= {"flops": operations * tensors.seen(), "bytes": call.set_bytes, "dense_flops": call.dense().flops}
                row |= {"errors": {n: dict(e) for n, e in errors.items()}, "refused": dict(refused), "kernels": kernels}
                row |= {key: facts[key] for key in ("variant", "config", "peak_flops") if key in facts}
                if "heed" in errors:
                    row |= {"max_abs_err": errors["heed"]["max_abs"], "rel_rms_err": errors["heed"]["rel_rms"]}
                row["clocks_mhz"] = {"before": self.clocks.mhz()}
                self.timed(row, call, mode, calls, reference, suite.copies)
                conclude(row)
                row["clocks_mhz"]["after"] = self.clocks.mhz()
                yield row

    def make_sets(self, call, count):
        """Input sets of a call."""
        generator = torch.Generator(device=self.device).manual_seed(self.settings.seed + 1)
        return [self.tensors.new_set(generator) for _ in range(count)]

