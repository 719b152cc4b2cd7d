// Never ends.
extern "C" void heed_forward(const heed::ForwardParams* params, long long, void*) {
  for (volatile int spin = params->len_q; spin != 0;) spin = params->len_q;
}
