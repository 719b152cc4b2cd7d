"""The contest of quantised calls: as heed.contest, with errors against the values before they were quantised beside every time."""

import torch

from heed import contenders as field
from heed import precision_calls
from heed.conclusion import conclude
from heed.contest import KERNEL_NAME_CHARACTERS, Contest
from heed.reference import make_sets


class PrecisionContest(Contest):
    """Prepares, judges and times contenders of heed.precision_contenders."""

    def rows(self, suite, call, facts):
        """Evidence rows of a heed.precision_suites.QuantisedCall, one for each of the suite's modes. `facts` is heed build's entry for its text."""
        seed = self.settings.seed
        with torch.no_grad():
            normal = make_sets(call, 1, self.device, seed)[0]
            outliers = precision_calls.outlier_set(call, self.device, seed)
            references = [precision_calls.Reference(call, *tensors, self.budget_flops, seed) for tensors in (normal, outliers)]
            calls, errors, kernels, refused = {}, {}, {}, {}
            for contender in [self.heed, *self.others]:
                name = contender.name
                try:
                    run = contender.prepare(call)
                    error, with_outliers = (self.judged(contender, run, reference, tensors) for reference, tensors in zip(references, (normal, outliers)))
                    errors[name] = error | {"rel_rms_outliers": with_outliers["rel_rms"], "pass": error["pass"] and with_outliers["pass"]}
                    kernels[name] = [n[:KERNEL_NAME_CHARACTERS] for n in field.kernel_names(run, *self.given(run, [normal])[0])]
                    calls[name] = run
                except Exception as error:  # each refuses in its own way; the reason stands in the table
                    refused[name] = field.reason_of(error)
            del normal, outliers
            for mode in suite.modes:
                row = {"suite": suite.name, "workload": call.name, "text": call.text, "causal": call.masked, "mode": mode, "is_call": True, "is_quantised": True}
                row |= {"flops": facts["flops"], "bytes": facts["bytes"], "dim": call.dim, "length": call.len_k}
                row |= {"errors": {n: dict(e) for n, e in errors.items()}, "refused": dict(refused), "kernels": kernels}
                row |= {key: facts[key] for key in ("variant", "config", "peak_flops") if key in facts}
                if "heed" in errors:
                    row |= {"max_abs_err": errors["heed"]["max_abs"], "rel_rms_err": errors["heed"]["rel_rms"]}
                row["clocks_mhz"] = {"before": self.clocks.mhz()}
                self.timed(row, call, mode, calls, references[0], suite.copies)
                conclude(row)
                row["clocks_mhz"]["after"] = self.clocks.mhz()
                yield row

    def judged(self, contender, run, reference, tensors):
        """The error of one run against the values before they were quantised."""
        given = self.given(run, [tensors])[0]
        o = field.first_call(run, given, self.synchronize)
        if hasattr(run, "values"):
            o = run.values(o, given[2])
        return reference.judge(o) if getattr(contender, "is_exact", False) else reference.judge_total(o)
